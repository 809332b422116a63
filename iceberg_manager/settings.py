"""One frozen description of a lake, from ``lake.yaml`` and the environment; everything else is derived from it.

Where it comes from, first match wins: an explicit path, the variable ``ICEBERG_LAKE``, the ``lake.yaml`` found from the
current folder upward, the folder ``./data``. A path may be a lake.yaml or a lake's folder. ``${NAME}`` in a value is
replaced from the environment, and ``ICEBERG_LAKE__SPARK__MODE=embedded`` overrides ``spark.mode``. Relative paths are
relative to the file they stand in. Secrets (and Spark's conf, which may hold some) never print, not in an error either.
Nothing is read before :func:`load_settings` is called.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator, model_validator

from iceberg_manager.errors import SettingsError
from iceberg_manager.ingest_settings import INGEST_PATHS, INGEST_SECTIONS, IngestSettings, unfold_storage
from iceberg_manager.names import did_you_mean
from iceberg_manager.sections import Section as _Section

FILE_NAME = "lake.yaml"
OVERRIDE_PREFIX = "ICEBERG_LAKE__"
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class CatalogSettings(_Section):
    """Where the catalog is. ``sqlite`` keeps it in one file beside the warehouse: one host, many processes."""

    type: Literal["sqlite", "postgres", "rest"] = "sqlite"
    name: str = Field("lake", pattern=r"^[a-z][a-z0-9_]*$")
    uri: SecretStr | None = None
    token: SecretStr | None = None
    credential: SecretStr | None = None
    warehouse: str | None = None

    @model_validator(mode="after")
    def _fits_its_type(self) -> "CatalogSettings":
        uri = self.uri.get_secret_value() if self.uri else ""
        scheme = {"postgres": ("postgresql://", "postgresql+psycopg2://"), "rest": ("http://", "https://")}.get(
            self.type
        )
        if scheme and not uri.startswith(scheme):
            raise ValueError(f"type {self.type} needs a uri that starts with {scheme[0]}")
        if self.type == "sqlite" and uri:
            raise ValueError("type sqlite takes no uri (its file is catalog.db in the lake's folder); set type as well")
        if self.type != "rest" and (self.token or self.credential or self.warehouse):
            raise ValueError("token, credential and warehouse belong to type rest")
        return self


class S3Settings(_Section):
    """An object store. Without keys the usual AWS chain (environment, profile, role) is used."""

    endpoint: str | None = None
    region: str = "us-east-1"
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    path_style: bool = False

    @model_validator(mode="after")
    def _keys_come_in_pairs(self) -> "S3Settings":
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise ValueError("access_key_id and secret_access_key go together")
        return self


class SparkSettings(_Section):
    """Which Spark does the work: ``shared`` (one warm local server), ``embedded`` (in the process) or ``remote``."""

    mode: Literal["shared", "embedded", "remote"] = "shared"
    remote: SecretStr | None = None
    cores: Annotated[int, Field(ge=1)] | Literal["*"] = "*"
    memory: str = Field("2g", pattern=r"^\d+[mg]$")
    ui: bool = False
    idle_minutes: float = Field(15, gt=0)
    server_dir: Path | None = None
    conf: Mapping[str, SecretStr] = Field(default_factory=dict)

    @field_validator("conf", mode="before")
    @classmethod
    def _as_spark_spells_it(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {key: str(value).lower() if isinstance(value, int | float) else value for key, value in given.items()}

    @model_validator(mode="after")
    def _remote_has_an_address(self) -> "SparkSettings":
        if (self.mode == "remote") != (self.remote is not None):
            raise ValueError("mode remote and the address `remote` (sc://host:port or a master URL) go together")
        return self


class MaintenanceSettings(_Section):
    """How tables that nobody declared are kept: a default policy, and policies by the pattern of a table's name."""

    default: Mapping[str, Any] = Field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)


class TablesSettings(_Section):
    """Which tables of the catalog are adopted as assets: patterns such as ``shop.*``, compared with ``namespace.table``."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()


class LakeSettings(_Section):
    """A whole lake. ``root`` is its folder; the rest has a sensible place under it."""

    root: Path = Path("data")
    warehouse: str | None = None
    landing: str | None = None
    catalog: CatalogSettings = CatalogSettings()
    s3: S3Settings | None = None
    spark: SparkSettings = SparkSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    tables: TablesSettings = TablesSettings()
    ingest: IngestSettings = IngestSettings()

    @model_validator(mode="after")
    def _s3_is_for_s3(self) -> "LakeSettings":
        on_s3 = [place for place in (self.warehouse, self.landing) if place and place.startswith("s3://")]
        if self.s3 and not on_s3:
            raise ValueError("s3 is set, but neither warehouse nor landing is an s3:// address")
        for place in (self.warehouse, self.landing):
            if place and "://" in place and not re.match("s3://[^/]", place):
                raise ValueError(f"{place!r} must be a local path or an address such as s3://bucket/folder")
        return self

    @model_validator(mode="after")
    def _root_is_a_folder(self) -> "LakeSettings":
        if ":/" in str(self.root) or "?" in str(self.root):
            raise ValueError(
                f"root: {str(self.root)!r} must be a local folder without '?' in its name; `warehouse` may be on s3"
            )
        return self

    @property
    def warehouse_location(self) -> str:
        """A plain absolute path or an s3:// address: never file://, which engines spell in two ways."""
        return (self.warehouse or str(self.root / "warehouse")).rstrip("/")

    @property
    def landing_location(self) -> str:
        return (self.landing or str(self.root / "landing")).rstrip("/")

    @property
    def catalog_file(self) -> Path:
        return self.root / "catalog.db"

    @property
    def spark_server_dir(self) -> Path:
        return self.spark.server_dir or self.root / "spark"

    @property
    def wal_folder(self) -> Path:
        return self.ingest.wal.base_path or self.root / "wal"

    @property
    def on_s3(self) -> bool:
        return self.warehouse_location.startswith("s3://")


def load_settings(path: str | Path | None = None, environment: Mapping[str, str] | None = None) -> LakeSettings:
    """Find, read, check and freeze a lake's settings; any mistake is one sentence in a SettingsError."""
    environment = os.environ if environment is None else environment
    place = _find(path, environment)
    if place.suffix not in (".yaml", ".yml"):
        if (place / FILE_NAME).is_file():
            place = place / FILE_NAME
        else:
            return _build({"root": str(place)}, Path.cwd(), environment, str(place))
    return _build(_read(place), place.parent.resolve(), environment, str(place))


def _find(path: str | Path | None, environment: Mapping[str, str]) -> Path:
    if given := path or environment.get("ICEBERG_LAKE"):
        place = Path(given).expanduser()
        if place.suffix in (".yaml", ".yml") and not place.is_file():
            raise SettingsError(
                f"There is no lake file at {place}: create it, or point --lake or ICEBERG_LAKE elsewhere."
            )
        if place.is_file() and place.suffix not in (".yaml", ".yml"):
            raise SettingsError(f"{place} is neither a lake's folder nor a .yaml file.")
        return place
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    return here / "data"


def _read(place: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{place} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise SettingsError(f"{place} is not a text file in UTF-8.") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"{place} is not valid YAML: {_yaml_problem(error)}.") from None
    if not isinstance(content or {}, dict):
        raise SettingsError(f"{place} must hold keys such as `warehouse:` and `catalog:`.")
    return content or {}


def _yaml_problem(error: yaml.YAMLError) -> str:
    """What is wrong and where, without the lines around it: they may hold a secret."""
    problem = getattr(error, "problem", None) or "it cannot be parsed"
    mark = getattr(error, "problem_mark", None)
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}" if mark else str(problem)


def _build(content: dict[str, Any], base: Path, environment: Mapping[str, str], source: str) -> LakeSettings:
    content = unfold_storage(content, source)
    for name in sorted(environment):
        if name.startswith(OVERRIDE_PREFIX):
            _override(content, name, environment[name])
    _refuse_unknown_keys(content, LakeSettings, source, ())
    content = _expand(content, environment, source)
    content["root"] = content.get("root") or "data"
    _make_absolute(content, ("root", "warehouse", "landing"), base)
    if isinstance(spark := content.get("spark"), dict):
        _make_absolute(spark, ("server_dir",), base)
    if isinstance(ingest := content.get("ingest"), dict):
        for name, keys in INGEST_PATHS.items():
            if isinstance(section := ingest.get(name), dict):
                _make_absolute(section, keys, base)
    try:
        return LakeSettings.model_validate(content)
    except ValidationError as error:
        raise SettingsError(f"{source}: {_problem(error)}.") from None


def _problem(error: ValidationError) -> str:
    """The first mistake, by its path in the file; what pydantic adds for the branches of a union is no part of it."""
    first = error.errors(include_input=False)[0]
    path = [str(part) for part in first["loc"]]
    where = ".".join(path if "conf" in path or path[:1] == ["ingest"] else path[:2])
    if first["type"] in ("model_type", "dict_type", "mapping_type"):
        return f"{where} must hold keys of its own, indented below it"
    said = first["msg"].removeprefix("Value error, ")
    return f"{where}: {said}" if where else said


def _override(content: dict[str, Any], name: str, value: str) -> None:
    *sections, key = path = name.removeprefix(OVERRIDE_PREFIX).lower().split("__")
    given: Any = value
    for part in reversed(path):
        given = {part: given}
    _refuse_unknown_keys(given, LakeSettings, f"The variable {name}", ())
    for section in sections:
        if content.get(section) is None:
            content[section] = {}
        content = content[section]
        if not isinstance(content, dict):
            raise SettingsError(f"The variable {name} does not fit: {section!r} holds a single value.")
    content[key] = value


def _refuse_unknown_keys(
    content: Mapping[str, Any], model: type[BaseModel], source: str, path: tuple[str, ...]
) -> None:
    for key, value in content.items():
        where = ".".join((*path, str(key)))
        if key not in model.model_fields:
            known = sorted(model.model_fields)
            hint = did_you_mean(str(key), known) or f" Known keys: {', '.join(known)}."
            raise SettingsError(f"{source}: unknown key {where!r}.{hint}")
        for name, section in _SECTIONS.items():
            if isinstance(value, Mapping) and name in str(model.model_fields[key].annotation):
                _refuse_unknown_keys(value, section, source, (*path, str(key)))


_SECTIONS: dict[str, type[BaseModel]] = {
    section.__name__: section
    for section in (CatalogSettings, S3Settings, SparkSettings, MaintenanceSettings, TablesSettings, *INGEST_SECTIONS)
}


def _expand(value: Any, environment: Mapping[str, str], source: str) -> Any:
    if isinstance(value, dict):
        return {key: _expand(item, environment, source) for key, item in value.items() if item is not None}
    if not isinstance(value, str):
        return value

    def lookup(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise SettingsError(f"{source} refers to ${{{match[1]}}}, but no such environment variable is set.")
        return environment[match[1]]

    return _REFERENCE.sub(lookup, value)


def _make_absolute(content: dict[str, Any], keys: tuple[str, ...], base: Path) -> None:
    """Paths count from the file they stand in; anything but a path is left for the check of types."""
    for key in keys:
        place = content.get(key)
        if isinstance(place, str) and place and "://" not in place:
            content[key] = str((base / Path(place).expanduser()).resolve())
