"""Opens the lake's catalog through PyIceberg, without a JVM, and translates its errors once.

Spark opens the same catalog under the same name (``session.py``), so that both see every table. On SQLite the journal
is WAL and writers wait for one another; every table has an explicit location, because the engines' defaults differ.
Only the kind of catalog that is used gets imported: each costs a quarter of a second.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, RESTError
from pyiceberg.table import Table

from iceberg_manager.errors import NotFoundError, UnavailableError, first_line
from iceberg_manager.names import TableName, did_you_mean
from iceberg_manager.settings import LakeSettings

BUSY_SECONDS = 30


def open_catalog(settings: LakeSettings) -> Catalog:
    """The catalog that ``settings`` describe, reachable and ready."""
    catalog = settings.catalog
    properties = {"warehouse": settings.warehouse_location, **_s3_properties(settings)}
    with catalog_errors(settings):
        if catalog.type == "rest":
            properties["warehouse"] = catalog.warehouse or settings.warehouse_location
            for key, secret in (("uri", catalog.uri), ("token", catalog.token), ("credential", catalog.credential)):
                if secret:
                    properties[key] = secret.get_secret_value()
            from pyiceberg.catalog.rest import RestCatalog

            return RestCatalog(catalog.name, **properties)
        from pyiceberg.catalog.sql import SqlCatalog

        return SqlCatalog(catalog.name, uri=_sql_uri(settings), pool_pre_ping="true", **properties)


def load_table(catalog: Catalog, name: TableName | str) -> Table:
    """A table as it is now, or a NotFoundError that names the nearest one."""
    name = TableName.parse(name)
    try:
        return catalog.load_table(name.identifier)
    except NoSuchTableError:
        known = [str(table) for table in list_tables(catalog)]
        raise NotFoundError(
            f"There is no table {str(name)!r} in the catalog.{did_you_mean(str(name), known)}"
        ) from None


def list_tables(catalog: Catalog) -> list[TableName]:
    """Every table of the catalog, sorted."""
    found: list[TableName] = []
    pending = list(catalog.list_namespaces())
    while pending:
        namespace = pending.pop()
        found += [TableName(tuple(parts[:-1]), parts[-1]) for parts in catalog.list_tables(namespace)]
        pending += [child for child in catalog.list_namespaces(namespace) if len(child) > len(namespace)]
    return sorted(set(found))


def table_location(settings: LakeSettings, name: TableName) -> str:
    """Where a table's files live."""
    return f"{settings.warehouse_location}/{name.path}"


@contextmanager
def catalog_errors(settings: LakeSettings) -> Iterator[None]:
    """Turns a catalog that does not answer into one sentence, with no password in it."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, _silences()):
            raise
        raise UnavailableError(
            f"The {settings.catalog.type} catalog at {shown_uri(settings)} did not answer: {_reason(error, settings)}. "
            "Check that it runs and that `catalog` in lake.yaml points to it."
        ) from error


def _silences() -> tuple[type[BaseException], ...]:
    """What a catalog that does not answer raises; errors of requests are OSErrors. Imported when something failed."""
    from sqlalchemy.exc import SQLAlchemyError

    return SQLAlchemyError, RESTError, sqlite3.Error, OSError


def shown_uri(settings: LakeSettings) -> str:
    """The catalog's address without user name and password."""
    if not settings.catalog.uri:
        return str(settings.catalog_file)
    scheme, _, rest = settings.catalog.uri.get_secret_value().partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _reason(error: BaseException, settings: LakeSettings) -> str:
    text = first_line(getattr(error, "orig", None) or error).rstrip(".")
    secrets = (settings.catalog.uri, settings.catalog.token, settings.catalog.credential)
    for secret in secrets:
        if secret:
            text = text.replace(secret.get_secret_value(), "***")
    return text


def _sql_uri(settings: LakeSettings) -> str:
    if settings.catalog.type == "postgres":
        assert settings.catalog.uri is not None
        return settings.catalog.uri.get_secret_value().replace("postgresql://", "postgresql+psycopg2://", 1)
    file = settings.catalog_file
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        connection = sqlite3.connect(file, timeout=BUSY_SECONDS)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
    return f"sqlite:///{file}?timeout={BUSY_SECONDS}"


def _s3_properties(settings: LakeSettings) -> dict[str, str]:
    s3 = settings.s3
    if not s3:
        return {}
    properties = {"s3.region": s3.region}
    if s3.endpoint:
        properties["s3.endpoint"] = s3.endpoint
    if s3.access_key_id and s3.secret_access_key:
        properties["s3.access-key-id"] = s3.access_key_id.get_secret_value()
        properties["s3.secret-access-key"] = s3.secret_access_key.get_secret_value()
    return properties
