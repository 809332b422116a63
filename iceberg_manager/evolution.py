"""Changes a table's columns, partitioning and sort order. Metadata only: no file is rewritten, past snapshots keep theirs.

A type may only widen, a new column is optional, and a column that the layout needs cannot go. What is refused is said in
one sentence, and nothing has changed then.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count

from pyiceberg.exceptions import ResolveError, ValidationError
from pyiceberg.schema import Schema, promote
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortDirection
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform

from iceberg_manager.commits import change
from iceberg_manager.errors import NotFoundError, SpecError
from iceberg_manager.history import main_line
from iceberg_manager.names import did_you_mean
from iceberg_manager.schemas import spec_like, type_text
from iceberg_manager.spec import parse_type

Load = Callable[[], Table]


@dataclass(frozen=True)
class SchemaVersion:
    """One schema that the table had, what it changed, and the first snapshot still retained that was written with it."""

    schema_id: int
    changes: tuple[str, ...]
    columns: dict[str, str]
    current: bool
    first_snapshot: int | None
    since: datetime | None


def evolve(load: Load, changes: Mapping[str, Mapping[str, str] | Sequence[str]]) -> Table:
    """Several changes as one: ``{"add": {name: type}, "rename": {old: new}, "alter": {name: type}, "drop": [name]}``."""
    known = {"add": _add, "rename": _rename, "alter": _alter, "drop": _drop}
    if unknown := [kind for kind in changes if kind not in known]:
        hint = did_you_mean(unknown[0], list(known))
        raise SpecError(f"{unknown[0]!r} is no kind of change; there are {', '.join(known)}.{hint}")

    def apply(table: Table) -> None:
        schema = table.schema()
        try:
            with table.update_schema(allow_incompatible_changes=False) as update:
                for kind, given in changes.items():
                    pairs = given.items() if isinstance(given, Mapping) else [(name, "") for name in given]
                    for name, value in pairs:
                        known[kind](update, table, schema, name, value)
        except (ValueError, ValidationError, ResolveError) as error:
            raise SpecError(f"The columns cannot change that way; nothing was changed. {error}") from error

    return change(load, apply)


def repartition(load: Load, partition_by: Sequence[str]) -> Table:
    """New data is laid out this way; files that are there stay as they are and are read as before."""

    def apply(table: Table) -> None:
        spec = spec_like(_name(table), table.schema(), partition_by=partition_by)
        wanted = {
            (_column(spec.iceberg_schema, part.source_id), str(part.transform)): part
            for part in spec.partition_spec.fields
        }
        now = {(_column(table.schema(), part.source_id), str(part.transform)): part for part in table.spec().fields}
        with table.update_spec() as update:
            for part in (now[key] for key in now.keys() - wanted.keys()):
                update.remove_field(part.name)
            for (column, _), part in wanted.items():
                if (column, str(part.transform)) not in now:
                    update.add_field(column, part.transform, part.name)

    return change(load, apply)


def sort(load: Load, sort_by: Sequence[str]) -> Table:
    """New data is sorted this way; an empty list means unsorted."""

    def apply(table: Table) -> None:
        spec = spec_like(_name(table), table.schema(), sort_by=sort_by)
        with table.update_sort_order() as update:
            for part in spec.sort_order.fields:
                order = update.desc if part.direction == SortDirection.DESC else update.asc
                order(_column(spec.iceberg_schema, part.source_id), IdentityTransform())

    return change(load, apply)


def versions(table: Table) -> list[SchemaVersion]:
    """Every schema of the table, oldest first."""
    first = {snapshot.schema_id: snapshot for snapshot in main_line(table)}
    found: list[SchemaVersion] = []
    before: Schema | None = None
    for schema in sorted(table.schemas().values(), key=lambda one: one.schema_id):
        snapshot = first.get(schema.schema_id)
        since = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC) if snapshot else None
        found.append(
            SchemaVersion(
                schema.schema_id,
                tuple(_changes(before, schema)),
                {field.name: type_text(field.field_type) for field in schema.fields},
                schema.schema_id == table.metadata.current_schema_id,
                snapshot.snapshot_id if snapshot else None,
                since,
            )
        )
        before = schema
    return found


def _changes(old: Schema | None, new: Schema) -> list[str]:
    """What became of the columns, in words; by field id, so that a rename is no drop and add."""
    if old is None:
        return [f"created with {', '.join(f'{field.name} {type_text(field.field_type)}' for field in new.fields)}"]
    before, after = ({field.field_id: field for field in schema.fields} for schema in (old, new))
    said = [f"dropped {before[key].name}" for key in before if key not in after]
    said += [f"added {field.name} {type_text(field.field_type)}" for key, field in after.items() if key not in before]
    for was, now in ((before[key], after[key]) for key in after if key in before):
        if was.name != now.name:
            said.append(f"renamed {was.name} to {now.name}")
        if was.field_type != now.field_type:
            said.append(f"{now.name} became {type_text(now.field_type)}, was {type_text(was.field_type)}")
        if was.required != now.required:
            said.append(f"{now.name} became {'required' if now.required else 'optional'}")
    return said or ["changed descriptions or order only"]


def _add(update: UpdateSchema, table: Table, schema: Schema, name: str, kind: str) -> None:
    if name in [field.name for field in schema.fields]:
        raise SpecError(f"{_name(table)} has a column {name!r} already; nothing was changed.")
    update.add_column((name,), parse_type(kind, count(1), f"{_name(table)}.{name}"))


def _rename(update: UpdateSchema, table: Table, schema: Schema, name: str, new: str) -> None:
    require_column(table, name)
    if new in [field.name for field in schema.fields]:
        raise SpecError(f"{_name(table)} has a column {new!r} already; nothing was changed.")
    update.rename_column((name,), new)


def _alter(update: UpdateSchema, table: Table, schema: Schema, name: str, kind: str) -> None:
    require_column(table, name)
    old, new = schema.find_type(name), parse_type(kind, count(1), f"{_name(table)}.{name}")
    try:
        widens = old.is_primitive and new.is_primitive and promote(old, new) == new
    except ResolveError:
        widens = False
    if not widens:
        raise SpecError(
            f"{_name(table)}.{name} is {old} and cannot become {new} without losing values; nothing was changed. "
            "A type may only widen: int to long, float to double, a decimal to more digits."
        )
    update.update_column((name,), new)


def _drop(update: UpdateSchema, table: Table, schema: Schema, name: str, _: str) -> None:
    require_column(table, name)
    field = schema.find_field(name).field_id
    if len(schema.fields) == 1:
        raise SpecError(f"{name!r} is the only column of {_name(table)}; drop the table instead.")
    if any(part.source_id == field for part in table.spec().fields):
        raise SpecError(f"{_name(table)} is partitioned by {name!r}: change the partitioning first.")
    if any(part.source_id == field for part in table.sort_order().fields):
        raise SpecError(f"{_name(table)} is sorted by {name!r}: change the sort order first.")
    if field in schema.identifier_field_ids:
        raise SpecError(f"{name!r} is part of {_name(table)}'s key and cannot be dropped.")
    update.delete_column((name,))


def require_column(table: Table, name: str) -> None:
    """An error that names the nearest column, if there is none of this name."""
    known = [field.name for field in table.schema().fields]
    if name not in known:
        raise NotFoundError(f"{_name(table)} has no column {name!r}.{did_you_mean(name, known)}")


def _column(schema: Schema, source: int) -> str:
    return str(schema.find_column_name(source))


def _name(table: Table) -> str:
    return ".".join(table.name())
