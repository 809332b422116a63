"""Moves a lake to another catalog: the new one is told each table's metadata file, and no file is copied or changed.

Both catalogs then name the same files, so writers must have changed over before the old one may be forgotten. Each table
is registered, loaded through the new catalog and compared with the old one. A table that the old catalog's writers moved
on since is registered anew; one that both sides wrote to is refused before anything is done. A crash leaves tables that
are registered and tables that are not: run it again. Between the two steps of a renewal (forget, register) a crash leaves
the table out of the new catalog, which the next run mends. The old catalog is only read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.table import Table

from iceberg_manager.catalog import list_tables, load_table
from iceberg_manager.errors import ConflictError, DamageError
from iceberg_manager.names import TableName


class Action(StrEnum):
    register = "register"  # the new catalog does not know the table
    renew = "renew"  # it knows an earlier state of it
    keep = "keep"  # it is there, as it is or already further on
    conflict = "conflict"  # both sides were written to, or another table has the name


@dataclass(frozen=True)
class Move:
    """One table and what is, or was, to be done with it."""

    table: str
    action: Action
    metadata_location: str
    snapshots: int
    done: bool = False


def plan(source: Catalog, target: Catalog, only: Sequence[str] = ()) -> list[Move]:
    """What a migration would do, table by table. Reads both catalogs and changes nothing."""
    names = [TableName.parse(name) for name in only] or list_tables(source)
    return [_planned(load_table(source, name), _known(target, name), name) for name in names]


def migrate(source: Catalog, target: Catalog, only: Sequence[str] = ()) -> list[Move]:
    """Register what is missing or behind, and verify every table through the new catalog."""
    moves = plan(source, target, only)
    if refused := [move.table for move in moves if move.action is Action.conflict]:
        raise ConflictError(
            f"Nothing was changed: the new catalog has another state of {', '.join(refused)}, which the old one does not "
            "lead to. Find out which is right, and drop the other one (without --purge) from its catalog."
        )
    return [_moved(source, target, move) for move in moves]


def _known(catalog: Catalog, name: TableName) -> Table | None:
    try:
        return catalog.load_table(name.identifier)
    except NoSuchTableError:
        return None


def _planned(ours: Table, theirs: Table | None, name: TableName) -> Move:
    return Move(str(name), _action(ours, theirs), ours.metadata_location, len(ours.metadata.snapshots))


def _action(ours: Table, theirs: Table | None) -> Action:
    if theirs is None:
        return Action.register
    if theirs.metadata.table_uuid != ours.metadata.table_uuid:
        return Action.conflict
    if theirs.metadata_location == ours.metadata_location or ours.metadata_location in _past(theirs):
        return Action.keep
    return Action.renew if theirs.metadata_location in _past(ours) else Action.conflict


def _past(table: Table) -> set[str]:
    return {entry.metadata_file for entry in table.metadata.metadata_log}


def _moved(source: Catalog, target: Catalog, move: Move) -> Move:
    name = TableName.parse(move.table)
    if move.action is Action.keep:
        return replace(move, done=True)
    if move.action is Action.renew:
        target.drop_table(name.identifier)
    _make_namespaces(source, target, name)
    target.register_table(name.identifier, move.metadata_location)
    _verify(load_table(source, name), load_table(target, name), move)
    return replace(move, done=True)


def _make_namespaces(source: Catalog, target: Catalog, name: TableName) -> None:
    """The namespace and those around it, with the properties that they have in the old catalog."""
    for depth in range(1, len(name.namespace) + 1):
        namespace = name.namespace[:depth]
        try:
            target.create_namespace(namespace, _own(source.load_namespace_properties(namespace)))
        except NamespaceAlreadyExistsError:
            continue


def _own(properties: Mapping[str, str]) -> dict[str, str]:
    """Without the mark by which SQL catalogs remember an empty namespace: a REST server over one refuses it."""
    return {key: value for key, value in properties.items() if key != "exists"}


def _verify(ours: Table, theirs: Table, move: Move) -> None:
    if ours.metadata_location != move.metadata_location:
        raise ConflictError(
            f"A writer changed {move.table} through the old catalog while it was moved. Stop the writers and run it again: "
            "what is moved already stays."
        )
    if _facts(ours) != _facts(theirs):
        raise DamageError(
            f"The new catalog reads {move.table} differently from the old one, which is unchanged. Drop the table (without "
            "--purge) from the new catalog, and compare the two with `iceberg-manager describe`."
        )


def _facts(table: Table) -> tuple[object, ...]:
    metadata = table.metadata
    return (
        metadata.table_uuid,
        metadata.current_snapshot_id,
        [snapshot.snapshot_id for snapshot in metadata.snapshots],
        {name: ref.snapshot_id for name, ref in metadata.refs.items()},
        table.schema(),
        metadata.properties,
    )
