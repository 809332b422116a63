"""Makes a table match its spec: creates it on first use, lets it grow, and refuses what would lose data.

Allowed by itself: new optional columns, wider types, required becoming optional, other docs, properties and sort order.
Refused with a sentence: a column that vanished, a narrower or different type, a new or newly required column without
values, another partitioning.
"""

import logging

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, UNSORTED_SORT_ORDER_ID, SortDirection, SortOrder
from pyiceberg.table.update import AddSortOrderUpdate, AssertDefaultSortOrderId, SetDefaultSortOrderUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType, NestedField

from iceberg_manager.catalog import load_table, table_location
from iceberg_manager.errors import ConflictError, SpecError
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import TableSpec

_log = logging.getLogger(__name__)
_TRIES = 8


def ensure_table(catalog: Catalog, settings: LakeSettings, spec: TableSpec) -> Table:
    """The spec's table, created or evolved if it has to be."""
    if not catalog.table_exists(spec.table.identifier):
        _create(catalog, settings, spec)
    for _ in range(_TRIES):
        table = load_table(catalog, spec.table)
        try:
            changed = _evolve_schema(table, spec)
            changed |= _evolve_layout(table, spec)
        except CommitFailedException as error:
            _log.info("%s changed meanwhile, looking again: %s", spec.name, error)
        else:
            return load_table(catalog, spec.table) if changed else table
    raise ConflictError(f"{spec.name}: other writers kept changing the table; it was left as it is. Run it again.")


def create_table(catalog: Catalog, settings: LakeSettings, spec: TableSpec) -> Table:
    """A new table, or an error if there is one of that name."""
    if catalog.table_exists(spec.table.identifier):
        raise SpecError(f"There is a table {spec.name} already; nothing was changed.")
    _create(catalog, settings, spec)
    return load_table(catalog, spec.table)


def drop_table(catalog: Catalog, table: Table, purge: bool = False) -> None:
    """The catalog forgets the table. Its files stay, unless ``purge`` asks for those that its snapshots name to go too.

    A crash in between leaves a table that is forgotten and files that are still there.
    """
    (catalog.purge_table if purge else catalog.drop_table)(table.name())


def _create(catalog: Catalog, settings: LakeSettings, spec: TableSpec) -> None:
    for depth in range(1, len(spec.table.namespace) + 1):
        try:
            catalog.create_namespace(spec.table.namespace[:depth])
        except Exception:
            if not catalog.namespace_exists(spec.table.namespace[:depth]):
                raise
    try:
        catalog.create_table(
            spec.table.identifier,
            schema=spec.iceberg_schema,
            location=table_location(settings, spec.table),
            partition_spec=spec.partition_spec,
            sort_order=spec.sort_order,
            properties=spec.table_properties(),
        )
        _log.info("created table %s", spec.name)
    except TableAlreadyExistsError:
        _log.info("table %s was created by someone else meanwhile", spec.name)


def _evolve_schema(table: Table, spec: TableSpec) -> bool:
    now = {field.name: field for field in table.schema().fields}
    wanted = {field.name: field for field in spec.iceberg_schema.fields}
    if lost := sorted(now.keys() - wanted.keys()):
        raise SpecError(
            f"{spec.name}: the spec no longer names {', '.join(lost)}. A spec never drops a column: add it back, "
            "or drop it from the table on purpose first."
        )
    added = [field for name, field in wanted.items() if name not in now]
    altered = [(now[name], field) for name, field in wanted.items() if name in now and _differs(now[name], field, spec)]
    if required := [field.name for field in added if field.required]:
        raise SpecError(
            f"{spec.name}: new column {required[0]} cannot be required: existing rows have no value for it."
        )
    spec_keys = spec.iceberg_schema.identifier_field_names()
    if not added and not altered and spec_keys == table.schema().identifier_field_names():
        return False
    with table.update_schema() as update:
        for field in added:
            update.add_column((field.name,), field.field_type, doc=field.doc)
        for old, new in altered:
            kind = new.field_type if _widens(old, new) else None
            update.update_column((new.name,), kind, new.required, new.doc or "")
        if spec_keys != table.schema().identifier_field_names():
            update.set_identifier_fields(*spec_keys)
    _log.info("evolved %s: added %s, altered %s", spec.name, [f.name for f in added], [new.name for _, new in altered])
    return True


def _differs(old: NestedField, new: NestedField, spec: TableSpec) -> bool:
    """Whether the column has to be altered; raises where it must not be."""
    if not _same_type(old, new) and not _widens(old, new):
        raise SpecError(
            f"{spec.name}: column {new.name} is {old.field_type} and cannot become {new.field_type} without losing "
            "data. Keep its type, or add a new column."
        )
    if new.required and not old.required:
        raise SpecError(f"{spec.name}: column {new.name} cannot become required: existing rows may lack it.")
    return not _same_type(old, new) or old.required != new.required or (old.doc or "") != (new.doc or "")


def _same_type(old: NestedField, new: NestedField) -> bool:
    """Equal but for the ids of nested fields, which the catalog hands out."""
    return _fresh(old) == _fresh(new)


def _fresh(field: NestedField) -> str:
    renumbered = assign_fresh_schema_ids(Schema(NestedField(1, "x", field.field_type, False)))
    return str(renumbered.fields[0].field_type)


def _widens(old: NestedField, new: NestedField) -> bool:
    """What Iceberg may change in a v2 table; readers promote more (text to binary, say), which is no evolution."""
    match old.field_type, new.field_type:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType() as narrow, DecimalType() as wide:
            return wide.scale == narrow.scale and wide.precision > narrow.precision
    return False


def _evolve_layout(table: Table, spec: TableSpec) -> bool:
    now, wanted = _layout(table.spec(), table.schema()), _layout(spec.partition_spec, spec.iceberg_schema)
    if now != wanted:
        raise SpecError(
            f"{spec.name}: the table is partitioned by {now or 'nothing'}, the spec says {wanted or 'nothing'}. "
            "Change the spec back, or repartition the table on purpose first."
        )
    changed = False
    properties = {key: value for key, value in spec.table_properties().items() if key != "format-version"}
    if any(table.properties.get(key) != value for key, value in properties.items()):
        with table.transaction() as transaction:
            transaction.set_properties(properties)
        changed = True
    if _sorting(table.sort_order(), table.schema()) != _sorting(spec.sort_order, spec.iceberg_schema):
        _sort(table, spec)
        changed = True
    return changed


def _sort(table: Table, spec: TableSpec) -> None:
    if spec.sort_by:
        with table.update_sort_order() as update:
            for field in spec.sort_order.fields:
                by = update.desc if field.direction == SortDirection.DESC else update.asc
                column = spec.iceberg_schema.find_field(field.source_id).name
                by(column, IdentityTransform(), field.null_order)
        return
    # PyIceberg's update cannot take a sort order away.
    known = table.metadata.sort_order_by_id(UNSORTED_SORT_ORDER_ID)
    added = () if known else (AddSortOrderUpdate(sort_order=UNSORTED_SORT_ORDER),)
    table.catalog.commit_table(
        table,
        (AssertDefaultSortOrderId(default_sort_order_id=table.metadata.default_sort_order_id),),
        (*added, SetDefaultSortOrderUpdate(sort_order_id=UNSORTED_SORT_ORDER_ID)),
    )


def _layout(partitions: PartitionSpec, schema: Schema) -> str:
    return ", ".join(f"{part.transform}({schema.find_column_name(part.source_id)})" for part in partitions.fields)


def _sorting(order: SortOrder, schema: Schema) -> list[tuple[str | None, str]]:
    return [(schema.find_column_name(field.source_id), str(field.direction)) for field in order.fields]


def declared_differences(table: Table, spec: TableSpec) -> list[str]:
    """How the table's columns differ from the spec's, one short line each."""
    now = {field.name: _fresh(field) for field in table.schema().fields}
    wanted = {field.name: _fresh(field) for field in spec.iceberg_schema.fields}
    return [
        f"{name}: {now.get(name, 'missing')}, declared {wanted.get(name, 'nowhere')}"
        for name in sorted(now.keys() | wanted.keys())
        if now.get(name) != wanted.get(name)
    ]
