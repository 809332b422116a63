"""Which policy a table is kept by. Pure: from what lake.yaml says and what the table itself says.

A table that a spec declares carries its policy in its properties. For others, ``maintenance.default`` of lake.yaml is the
start, the table's own properties come on top, and the first pattern under ``maintenance.tables`` that fits its name has the
last word. Durations are written ``90s``, ``15m``, ``12h``, ``30d`` or ``2w``.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from pyiceberg.table import Table

from iceberg_manager.errors import SettingsError, SpecError
from iceberg_manager.names import did_you_mean
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_TIMES = ("expire_after", "row_ttl", "ref_retention")
_NUMBERS = ("keep_snapshots", "target_file_mb", "metadata_versions", "health_mark", "min_input_files")
_KNOWN = [field.name for field in fields(MaintenancePolicy) if not field.name.endswith("_cron")]


def duration(text: Any, where: str) -> timedelta:
    """``30d`` as a timedelta."""
    found = _DURATION.fullmatch(str(text).strip())
    if not found:
        raise SettingsError(f"{where}: {text!r} is not a duration such as 12h or 30d.")
    return timedelta(**{_UNITS[found[2]]: float(found[1])})


class Policies:
    """The policies of a lake's tables."""

    def __init__(self, settings: LakeSettings) -> None:
        said = settings.maintenance
        self._default = _given(said.default, "maintenance.default")
        self._tables = {
            pattern: _given(content, f"maintenance.tables.{pattern}") for pattern, content in said.tables.items()
        }
        self._apply(MaintenancePolicy(), self._default, "maintenance.default")
        for pattern, given in self._tables.items():
            self._apply(MaintenancePolicy(), {**self._default, **given}, f"maintenance.tables.{pattern}")

    def of(self, table: Table) -> MaintenancePolicy:
        name = ".".join(table.name())
        own = MaintenancePolicy.given_by(table.properties)
        policy = self._apply(MaintenancePolicy(), {**self._default, **own}, f"The policy of {name}")
        for pattern, given in self._tables.items():
            if fnmatchcase(name, pattern):
                return self._apply(policy, given, f"maintenance.tables.{pattern} for {name}")
        return policy

    @staticmethod
    def _apply(policy: MaintenancePolicy, given: Mapping[str, Any], where: str) -> MaintenancePolicy:
        try:
            return replace(policy, **given)
        except SpecError as error:
            raise SettingsError(f"{where}: {error}") from error


def _given(content: Mapping[str, Any], where: str) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for key, value in content.items():
        if key.endswith("_cron"):
            raise SettingsError(
                f"{where}: {key} belongs to a table's declaration: schedules are made without the lake."
            )
        if key not in _KNOWN:
            raise SettingsError(f"{where}: unknown key {key!r}.{did_you_mean(key, _KNOWN)}")
        read[key] = _value(key, value, f"{where}.{key}")
    return read


def _value(key: str, value: Any, where: str) -> Any:
    if key in _TIMES:
        return duration(value, where)
    if key in _NUMBERS:
        if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value).strip()):
            raise SettingsError(f"{where}: {value!r} is not a whole number.")
        return int(value)
    if key == "compaction_columns":
        return tuple(value.split(",")) if isinstance(value, str) else tuple(value)
    return str(value)
