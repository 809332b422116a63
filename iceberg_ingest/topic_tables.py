"""A topic's table: made when its first rows come, and grown when rows bring new columns.

Namespace is the tenant, name is the topic; both are checked, so that neither can reach another's table or leave the
warehouse. Columns only come and types only widen. What cannot be is said as a DataError or SpecError; nothing changed then.
"""

import re
from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.table import Table

from iceberg_manager import evolution, schemas
from iceberg_manager.errors import DataError, InputError, NotFoundError
from iceberg_manager.fitting import Fitting, MisfitError
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy, TableSpec
from iceberg_manager.storage import flush
from iceberg_manager.table_versions import load
from iceberg_manager.tables import ensure_table

_PART = re.compile(r"[a-z][a-z0-9_]{0,62}")
KEPT_SNAPSHOTS = 100


def topic_name(tenant: str, topic: str) -> TableName:
    """The table of a topic, or an InputError."""
    for part in (tenant, topic):
        if not _PART.fullmatch(part):
            raise InputError(
                f"{part!r} is no name of a tenant or topic: it starts with a small letter and holds up to 63 small "
                "letters, digits and underscores."
            )
    return TableName((tenant,), topic)


def find(catalog: Catalog, name: TableName) -> Table | None:
    """The table as it is now, None if there is none."""
    try:
        return load(catalog, name)
    except (NotFoundError, NoSuchTableError):
        return None


def create(
    catalog: Catalog, settings: LakeSettings, name: TableName, schema: pa.Schema,
    partition_by: Sequence[str] = (), sort_by: Sequence[str] = (),
) -> Table:  # fmt: skip
    """A table with these columns; one that is there already stays as it is."""
    if (found := find(catalog, name)) is not None:
        return found
    policy = MaintenancePolicy(keep_snapshots=KEPT_SNAPSHOTS)
    spec = TableSpec(
        str(name), schema=schemas.columns(schema), partition_by=partition_by, sort_by=sort_by, maintenance=policy
    )
    try:
        table = ensure_table(catalog, settings, spec)
    except NamespaceAlreadyExistsError:
        table = ensure_table(catalog, settings, spec)
    flush([table.metadata_location])
    return load(catalog, name)


def grow(catalog: Catalog, name: TableName, schema: pa.Schema) -> Table:
    """Add the columns that rows of this schema bring and the table lacks, and widen types that have to be."""
    table = load(catalog, name)
    now = schemas.columns(table.schema())
    given = schemas.columns(schema)
    added = {column: how.type for column, how in given.items() if column not in now}
    wider = {
        column: how.type
        for column, how in given.items()
        if column in now and (now[column].type, how.type) in (("int", "long"), ("float", "double"))
    }
    if not added and not wider:
        return table
    evolution.evolve(lambda: load(catalog, name), {"add": added, "alter": wider})
    table = load(catalog, name)
    flush([table.metadata_location])
    return table


def fitted(table: Table, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as the table's rows, or a DataError that says which value does not fit."""
    try:
        fitting = Fitting(table.schema())
        fitting.check_names(batch.schema.names)
        return fitting.fit(batch)
    except MisfitError as error:
        raise DataError(f"row {error.row}: {error}") from error
