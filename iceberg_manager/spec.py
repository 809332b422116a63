"""What a table is declared to be: columns, layout, how it is written, kept and checked. Pure data, checked when made.

Types are Iceberg's names (``long``, ``timestamptz``, ``decimal(10,2)``, ``list<string>`` …). Those that readers
disagree about are refused: ``time``, ``uuid`` and nanoseconds.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from itertools import count
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError
from pyiceberg.exceptions import ValidationError as IcebergValidationError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import Transform, parse_transform
from pyiceberg.types import (
    DateType,
    DecimalType,
    GeographyType,
    GeometryType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from iceberg_manager.checks import Check
from iceberg_manager.errors import SpecError
from iceberg_manager.landing.policy import PROPERTY as LANDING_PROPERTY
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.names import TableName, did_you_mean

WriteMode = Literal["append", "overwrite", "overwrite_partitions", "merge", "delete_insert"]
CompactionStrategy = Literal["binpack", "sort", "zorder"]
_CRON = re.compile(r"[\d*/,\-]+( +[\dA-Za-z*/,\-]+){4}")
_POLICY = "iceberg-assets.maintenance"
_DAYS = ("row_ttl", "ref_retention")
_AGE = "history.expire.max-snapshot-age-ms"
_COUNT = "history.expire.min-snapshots-to-keep"
_FILE_SIZE = "write.target-file-size-bytes"
_VERSIONS = "write.metadata.previous-versions-max"
_PARTITION = re.compile(r"(?:(?P<transform>\w+)\((?P<args>[^()]*)\))|(?P<column>[^()]+)")
_SORT = re.compile(r"(?P<column>.+?)(?:\s+(?P<direction>asc|desc))?", re.IGNORECASE)
_COLUMN = re.compile(r"(?! )[^`.\x00-\x1f]+(?<! )")
_TYPES: TypeAdapter[PrimitiveType] = TypeAdapter(PrimitiveType)
_REFUSED: dict[type[IcebergType], str] = {
    UnknownType: "the type it will have",
    GeometryType: "string or binary",
    GeographyType: "string or binary",
    TimeType: "long (microseconds of the day)",
    UUIDType: "string",
    TimestampNanoType: "timestamp",
    TimestamptzNanoType: "timestamptz",
}


@dataclass(frozen=True)
class Column:
    """One column, when its type alone does not say enough."""

    type: str
    doc: str = ""
    required: bool = False


@dataclass(frozen=True)
class MaintenancePolicy:
    """How long history and rows are kept, and how large files should be. What the maintenance planner goes by.

    A snapshot goes when both age and count allow it. Rows whose ``row_ttl_column`` is older than ``row_ttl`` are planned
    for removal. ``ref_retention`` is for branches and tags that have none of their own; None keeps those for ever. A plan
    by need leaves a table alone unless its health is below ``health_mark``. Only a partition with ``min_input_files``
    small files is worth compacting. The crons (in UTC) are when Dagster's schedules do each kind of work.
    """

    expire_after: timedelta = timedelta(days=30)
    keep_snapshots: int = 20
    target_file_mb: int = 128
    metadata_versions: int = 50
    health_mark: int = 70
    row_ttl_column: str | None = None
    row_ttl: timedelta | None = None
    compaction: CompactionStrategy = "binpack"
    compaction_columns: Sequence[str] = ()
    min_input_files: int = 5
    ref_retention: timedelta | None = None
    compaction_cron: str = "0 2 * * *"
    manifests_cron: str = "30 2 * * *"
    expiry_cron: str = "30 3 * * *"
    orphans_cron: str = "0 4 * * 0"

    def __post_init__(self) -> None:
        if self.expire_after < timedelta(0) or self.keep_snapshots < 1:
            raise SpecError("A maintenance policy keeps at least one snapshot, for a time that is not negative.")
        if self.target_file_mb < 1 or self.metadata_versions < 1:
            raise SpecError("target_file_mb and metadata_versions are at least 1.")
        if not 0 <= self.health_mark <= 100:
            raise SpecError(f"health_mark is a health from 0 to 100, not {self.health_mark}.")
        if self.min_input_files < 2:
            raise SpecError("min_input_files is at least 2: one file alone cannot be made fewer.")
        self._refuse_bad_times()
        self._refuse_bad_compaction()
        for option in ("compaction_cron", "manifests_cron", "expiry_cron", "orphans_cron"):
            if not _CRON.fullmatch(getattr(self, option).strip()):
                raise SpecError(
                    f"{option} {getattr(self, option)!r} is not a cron of five fields, such as '0 2 * * *'."
                )

    def _refuse_bad_times(self) -> None:
        if (self.row_ttl is None) != (self.row_ttl_column is None):
            raise SpecError("row_ttl and row_ttl_column go together: which rows are old is told by a column.")
        for option in ("row_ttl", "ref_retention"):
            kept: timedelta | None = getattr(self, option)
            if kept is not None and kept <= timedelta(0):
                raise SpecError(f"{option} is a time greater than zero; with {kept} nothing would be kept.")

    def _refuse_bad_compaction(self) -> None:
        if self.compaction not in get_args(CompactionStrategy):
            known = list(get_args(CompactionStrategy))
            raise SpecError(
                f"compaction {self.compaction!r} is not one of {', '.join(known)}.{did_you_mean(self.compaction, known)}"
            )
        if isinstance(self.compaction_columns, str):
            raise SpecError(f"compaction_columns is a list, such as [{self.compaction_columns!r}].")
        if self.compaction == "binpack" and self.compaction_columns:
            raise SpecError("compaction binpack does not sort, so it takes no compaction_columns: use sort or zorder.")
        if self.compaction == "zorder" and len(self.compaction_columns) < 2:
            raise SpecError("compaction zorder needs at least two compaction_columns; for one, sort does the same.")

    @classmethod
    def of_properties(cls, properties: Mapping[str, str]) -> "MaintenancePolicy":
        """What a table's own properties ask for, else the defaults."""
        return cls(**cls.given_by(properties))

    @classmethod
    def given_by(cls, properties: Mapping[str, str]) -> dict[str, Any]:
        """What a table's own properties ask for, and nothing else."""
        given: dict[str, tuple[str, Callable[[str], Any]]] = {
            "expire_after": (_AGE, lambda text: timedelta(milliseconds=int(text))),
            "keep_snapshots": (_COUNT, int),
            "target_file_mb": (_FILE_SIZE, lambda text: max(1, int(text) // 1024**2)),
            "metadata_versions": (_VERSIONS, int),
        }
        try:
            read = {name: parse(properties[key]) for name, (key, parse) in given.items() if key in properties}
            more = json.loads(properties.get(_POLICY, "{}"))
            times = {key: timedelta(seconds=more[key]) for key in _DAYS if key in more}
            read |= more | times
            cls(**read)
        except (ValueError, OverflowError, TypeError) as error:
            raise SpecError(
                f"A table property that says how the table is kept is no number or no policy: {error}."
            ) from error
        return read

    def properties(self) -> dict[str, str]:
        """As the table properties that every Iceberg engine honours."""
        return {
            _AGE: str(int(self.expire_after.total_seconds() * 1000)),
            _COUNT: str(self.keep_snapshots),
            _FILE_SIZE: str(self.target_file_mb * 1024 * 1024),
            "write.metadata.delete-after-commit.enabled": "true",
            _VERSIONS: str(self.metadata_versions),
            **self._own_property(),
        }

    def _own_property(self) -> dict[str, str]:
        """What other engines have no property for, so that the command line keeps the table as it was declared."""
        usual = MaintenancePolicy()
        names = ("health_mark", "row_ttl_column", *_DAYS, "compaction", "compaction_columns", "min_input_files")
        said = {name: value for name in names if (value := getattr(self, name)) != getattr(usual, name)}
        for name, value in said.items():
            if isinstance(value, timedelta):
                said[name] = value.total_seconds()
        return {_POLICY: json.dumps(said)} if said else {}


@dataclass(frozen=True)
class TableSpec:
    """A table's whole declaration.

    ``key`` names the columns that make a row unique: a merge needs it, and a check watches it. ``delete_where`` is the
    SQL condition whose rows a ``delete_insert`` replaces. With ``audit``, rows are written to a branch and published only
    if every check of severity error holds. ``landing`` says how files that arrive for the table are taken in.
    """

    name: str
    schema: Mapping[str, str | Column]
    description: str = ""
    partition_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()
    key: Sequence[str] = ()
    write_mode: WriteMode = "append"
    delete_where: str | None = None
    checks: Sequence[Check] = ()
    audit: bool = False
    maintenance: MaintenancePolicy = field(default_factory=MaintenancePolicy)
    properties: Mapping[str, str] = field(default_factory=dict)
    landing: LandingPolicy | None = None

    def __post_init__(self) -> None:
        TableName.parse(self.name)
        self._refuse_bad_columns()
        for option in ("partition_by", "sort_by", "key", "checks"):
            if isinstance(getattr(self, option), str):
                raise SpecError(f"{self.name}: {option} is a list, such as [{getattr(self, option)!r}].")
        if self.write_mode not in get_args(WriteMode):
            raise SpecError(
                f"{self.name}: write_mode {self.write_mode!r} is not one of {', '.join(get_args(WriteMode))}."
            )
        self._require_columns("key", self.key)
        for check in self.checks:
            self._require_columns(f"check {check.name}", check.columns)
        if self.write_mode == "merge" and not self.key:
            raise SpecError(f"{self.name}: write_mode merge needs a key, the columns that make a row unique.")
        if (self.write_mode == "delete_insert") != (self.delete_where is not None):
            raise SpecError(f"{self.name}: write_mode delete_insert and delete_where go together.")
        if self.delete_where is not None and not self.delete_where.strip():
            raise SpecError(
                f"{self.name}: delete_where is empty; name the rows to replace, such as \"day = '2026-01-01'\"."
            )
        names = [check.name for check in self.checks]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SpecError(f"{self.name}: two checks are named {twice[0]!r}; give one of them another name.")
        if self.write_mode == "overwrite_partitions" and not self.partition_by:
            raise SpecError(f"{self.name}: write_mode overwrite_partitions needs partition_by.")
        if self.landing and self.write_mode != "append":
            raise SpecError(f"{self.name}: files that land are added, so write_mode is append, not {self.write_mode}.")
        _ = self.iceberg_schema, self.partition_spec, self.sort_order
        self._refuse_misfit_policy()

    @property
    def table(self) -> TableName:
        return TableName.parse(self.name)

    @cached_property
    def columns(self) -> dict[str, Column]:
        return {name: given if isinstance(given, Column) else Column(given) for name, given in self.schema.items()}

    @cached_property
    def iceberg_schema(self) -> Schema:
        """Column ids here only order the columns; the catalog hands out the real ones."""
        ids = count(len(self.columns) + 1)
        fields = [
            NestedField(
                number, name, parse_type(column.type, ids, f"{self.name}.{name}"), column.required, column.doc or None
            )
            for number, (name, column) in enumerate(self.columns.items(), start=1)
        ]
        keys = [item.field_id for item in fields if item.name in self.key and item.required]
        return Schema(*fields, identifier_field_ids=keys if len(keys) == len(self.key) else [])

    @cached_property
    def partition_spec(self) -> PartitionSpec:
        fields: list[PartitionField] = []
        for number, text in enumerate(self.partition_by):
            column, transform, name = self._partition(text)
            source = self.iceberg_schema.find_field(column)
            if not transform.can_transform(source.field_type):
                raise SpecError(
                    f"{self.name}: partition_by {text!r} does not work on a column of type {source.field_type}."
                )
            if name in [field.name for field in fields] or (name in self.schema and name != column):
                raise SpecError(f"{self.name}: partition_by {text!r} needs the name {name!r}, which is taken already.")
            fields.append(PartitionField(source.field_id, 1000 + number, transform, name))
        return PartitionSpec(*fields)

    @cached_property
    def sort_order(self) -> SortOrder:
        fields = []
        for text in self.sort_by:
            match = _SORT.fullmatch(text.strip())
            column = match["column"] if match else text
            self._require_columns("sort_by", [column])
            source = self.iceberg_schema.find_field(column)
            if not source.field_type.is_primitive:
                raise SpecError(f"{self.name}: sort_by {text!r} does not work on a column of type {source.field_type}.")
            down = bool(match and (match["direction"] or "").lower() == "desc")
            fields.append(
                SortField(
                    source_id=source.field_id,
                    transform=parse_transform("identity"),
                    direction=SortDirection.DESC if down else SortDirection.ASC,
                    null_order=NullOrder.NULLS_LAST if down else NullOrder.NULLS_FIRST,
                )
            )
        return SortOrder(*fields)

    def table_properties(self) -> dict[str, str]:
        """What the table is created with: readable by every engine, cheap to commit to, and kept as the policy says."""
        return {
            "format-version": "2",
            "write.parquet.compression-codec": "zstd",
            "write.delete.mode": "copy-on-write",
            "write.update.mode": "copy-on-write",
            "write.merge.mode": "copy-on-write",
            **self.maintenance.properties(),
            **({LANDING_PROPERTY: self.landing.to_property()} if self.landing else {}),
            **self.properties,
        }

    def _partition(self, text: str) -> tuple[str, Transform, str]:  # type: ignore[type-arg]
        match = _PARTITION.fullmatch(text.strip())
        if not match:
            raise SpecError(f"{self.name}: partition_by {text!r} is not a column or a transform such as day(ts).")
        if match["column"]:
            self._require_columns("partition_by", [match["column"]])
            return match["column"], parse_transform("identity"), match["column"]
        kind, args = match["transform"], [part.strip() for part in match["args"].split(",")]
        numbers = [part for part in args if re.fullmatch("[0-9]+", part)]
        known = ("year", "month", "day", "hour", "bucket", "truncate")
        sized = kind in ("bucket", "truncate")
        if kind not in known or len(numbers) != sized or len(args) != 1 + sized or any(int(n) < 1 for n in numbers):
            raise SpecError(
                f"{self.name}: partition_by {text!r}: use one of {', '.join(known)}, such as day(ts) or bucket(16, id)."
            )
        column = next(part for part in args if part not in numbers)
        self._require_columns("partition_by", [column])
        name = f"{column}_{'trunc' if kind == 'truncate' else kind}"
        return column, parse_transform(f"{kind}[{numbers[0]}]" if numbers else kind), name

    def _refuse_misfit_policy(self) -> None:
        policy = self.maintenance
        self._require_columns("compaction_columns", policy.compaction_columns)
        if policy.compaction == "sort" and not policy.compaction_columns and not self.sort_by:
            raise SpecError(f"{self.name}: compaction sort needs compaction_columns, or the table's own sort_by.")
        if policy.row_ttl_column is None:
            return
        self._require_columns("row_ttl_column", [policy.row_ttl_column])
        kind = self.iceberg_schema.find_field(policy.row_ttl_column).field_type
        if not isinstance(kind, DateType | TimestampType | TimestamptzType):
            raise SpecError(
                f"{self.name}: row_ttl_column {policy.row_ttl_column!r} is {kind}, not a date or a timestamp."
            )

    def _refuse_bad_columns(self) -> None:
        """Every engine has to be able to name a column, and Spark does not tell ``id`` from ``ID``."""
        if not self.schema:
            raise SpecError(f"{self.name}: a table needs at least one column.")
        seen: dict[str, str] = {}
        for name, given in self.schema.items():
            if not _COLUMN.fullmatch(str(name)):
                raise SpecError(
                    f"{self.name}: {name!r} is not a column name: no dots, backticks or outer spaces, please."
                )
            if not isinstance(given, str | Column):
                raise SpecError(f"{self.name}.{name}: {given!r} is not a type; write its name, or a Column.")
            if other := seen.get(name.lower()):
                raise SpecError(f"{self.name}: columns {other!r} and {name!r} differ in case only.")
            seen[name.lower()] = name

    def _require_columns(self, where: str, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.schema:
                hint = did_you_mean(name, list(self.schema))
                raise SpecError(f"{self.name}: {where} names {name!r}, which is not a column.{hint}")


def parse_type(text: str, ids: Iterator[int], where: str) -> IcebergType:
    """An Iceberg type from its name; list<…>, map<…,…> and struct<a: …> may nest. ``ids`` number what is inside."""
    nested = re.fullmatch(r"(list|map|struct)<(.*)>", text.strip(), re.DOTALL)
    if not nested:
        return _primitive(text.strip(), where)
    kind, parts = nested[1], _split(nested[2])
    if kind == "list" and len(parts) == 1:
        return ListType(next(ids), parse_type(parts[0], ids, where), element_required=False)
    if kind == "map" and len(parts) == 2:
        key, value = (parse_type(part, ids, where) for part in parts)
        return MapType(next(ids), key, next(ids), value, value_required=False)
    named = [part.partition(":") for part in parts]
    names = [name.strip() for name, _, of in named if of.strip()]
    if kind == "struct" and all(names) and len(set(names)) == len(parts):
        return StructType(
            *(NestedField(next(ids), name.strip(), parse_type(of, ids, where), False) for name, _, of in named)
        )
    raise SpecError(
        f"{where}: {text!r} is not complete or names a field twice; write list<string>, map<string, long> or struct<a: int>."
    )


def _split(text: str) -> list[str]:
    """At the commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _primitive(text: str, where: str) -> IcebergType:
    try:
        parsed: IcebergType = _TYPES.validate_python(text)
    except (ValidationError, IcebergValidationError):
        raise SpecError(f"{where}: {text!r} is not an Iceberg type such as long, string or decimal(10,2).") from None
    if isinstance(parsed, DecimalType) and parsed.scale > parsed.precision:
        raise SpecError(f"{where}: {text!r} has more digits after the point than digits.")
    for refused, instead in _REFUSED.items():
        if isinstance(parsed, refused):
            raise SpecError(f"{where}: readers disagree about {text}; declare it as {instead}.")
    return parsed
