"""Every error this project raises on purpose, split by what the caller should do next.

    LakeError
    ├── InputError            fix what was given, then try again
    │   ├── SettingsError     lake.yaml or the environment
    │   ├── SpecError         a table's declaration, or a change to it that would lose data
    │   ├── DataError         rows that do not fit the table
    │   │   └── AuditError    rows that break the table's checks; they were not published
    │   └── NotFoundError     no such table, snapshot or column
    ├── SetupError            something has to be installed (Java, a Spark jar)
    ├── UnavailableError      a service did not answer; trying again later may work
    ├── ConflictError         other writers kept winning; nothing of ours was committed
    └── DamageError           data on disk is not what was written; nothing was changed, a person decides

Foreign exceptions (Spark, PyIceberg, DuckDB, SQL) are translated once, where they enter, and kept as ``__cause__``.
"""

from collections.abc import Sequence
from typing import Any


class LakeError(Exception):
    """The root: its text is a sentence for people, saying what happened and what to do."""


class InputError(LakeError):
    """The caller gave something that cannot work."""


class SettingsError(InputError):
    """lake.yaml or the environment is wrong."""


class SpecError(InputError):
    """A table's declaration is wrong, or would lose data."""


class DataError(InputError):
    """Rows do not fit the table they were meant for."""


class AuditError(DataError):
    """Rows broke a check before they were published. ``outcomes`` says what each check found."""

    def __init__(self, message: str, outcomes: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.outcomes = outcomes


class NotFoundError(InputError):
    """A table, snapshot or column that does not exist."""


class SetupError(LakeError):
    """A tool this project needs is missing or too old."""


class UnavailableError(LakeError):
    """A service did not answer."""


class ConflictError(LakeError):
    """Concurrent writers kept winning the commit."""


class DamageError(LakeError):
    """Stored data is damaged or missing. ``places`` says where."""

    def __init__(self, message: str, places: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.places = places


def first_line(error: BaseException) -> str:
    """The part of a foreign error that a person can use: its first non-empty line, without the JVM's stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
