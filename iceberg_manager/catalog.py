"""Opens the lake's catalog through PyIceberg, without a JVM, and translates its errors once.

Spark opens the same catalog under the same name (``session.py``), so that both see every table. On SQLite the journal
is WAL and writers wait for one another; every table has an explicit location, because the engines' defaults differ.
Only the kind of catalog that is used gets imported: each costs a quarter of a second.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, RESTError, ValidationError
from pyiceberg.table import Table

from iceberg_manager.errors import DamageError, NotFoundError, UnavailableError, first_line
from iceberg_manager.names import TableName, did_you_mean
from iceberg_manager.settings import LakeSettings

BUSY_SECONDS = 30
CONNECT_SECONDS = 10
ANSWER_SECONDS = 60
_TOGETHER = ("already exists", "duplicate key", "UNIQUE constraint")


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
            properties["oauth2-server-uri"] = f"{properties['uri'].rstrip('/')}/v1/oauth/tokens"
            return _rest_catalog(catalog.name, properties)
        return _sql_catalog(settings, properties)


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
    except FileNotFoundError as error:
        raise NotFoundError(
            f"The catalog knows table {str(name)!r}, but its metadata file is gone: {first_line(error)}. Restore the "
            "file, or drop the table from the catalog."
        ) from error
    except (ValueError, ValidationError) as error:
        raise damaged(name, error) from error


def damaged(name: TableName, error: Exception) -> DamageError:
    """A metadata file that is there but is not one."""
    return DamageError(
        f"The metadata file of table {str(name)!r} is damaged and nothing was changed: {first_line(error)}. Restore it, or "
        "point the catalog to an earlier one beside it."
    )


def list_namespaces(catalog: Catalog) -> list[tuple[str, ...]]:
    """Every namespace of the catalog, nested ones too, sorted."""
    found: set[tuple[str, ...]] = set()
    pending = list(catalog.list_namespaces())
    while pending:
        namespace = pending.pop()
        found.add(tuple(namespace))
        pending += [child for child in catalog.list_namespaces(namespace) if len(child) > len(namespace)]
    return sorted(found)


def list_tables(catalog: Catalog) -> list[TableName]:
    """Every table of the catalog, sorted."""
    listed = (parts for namespace in list_namespaces(catalog) for parts in catalog.list_tables(namespace))
    return sorted({TableName(tuple(parts[:-1]), parts[-1]) for parts in listed})


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
        reason = _without_secrets(first_line(getattr(error, "orig", None) or error).rstrip("."), settings)
        # A cause is printed with its own text, so one that names a secret is left out.
        cause = error if _without_secrets(str(error), settings) == str(error) else None
        raise UnavailableError(
            f"The {settings.catalog.type} catalog at {shown_uri(settings)} did not answer: {reason}. "
            "Check that it runs and that `catalog` in lake.yaml points to it."
        ) from cause


def _silences() -> tuple[type[BaseException], ...]:
    """What a catalog that does not answer raises; errors of requests are OSErrors. Imported when something failed."""
    from sqlalchemy.exc import SQLAlchemyError

    return SQLAlchemyError, RESTError, sqlite3.Error, OSError


def shown_uri(settings: LakeSettings) -> str:
    """The catalog's address without user name and password."""
    if not settings.catalog.uri:
        return str(settings.catalog_file)
    scheme, _, rest = settings.catalog.uri.get_secret_value().partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


def login(uri: str) -> tuple[str, str, str]:
    """User name, password (both as they are, without %-escapes) and the rest of an address after its scheme."""
    words, _, place = uri.partition("://")[2].rpartition("@")
    user, _, password = words.partition(":")
    return unquote(user), unquote(password), place


def _without_secrets(text: str, settings: LakeSettings) -> str:
    catalog = settings.catalog
    secrets = [secret.get_secret_value() for secret in (catalog.uri, catalog.token, catalog.credential) if secret]
    if catalog.uri:
        password = login(catalog.uri.get_secret_value())[1]
        secrets += [password, catalog.uri.get_secret_value().partition("://")[2].rpartition("@")[0]]
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text


def _rest_catalog(name: str, properties: dict[str, str]) -> Catalog:
    """PyIceberg waits for a silent server without end; here every request has a time limit."""
    from pyiceberg.catalog.rest import RestCatalog
    from requests import PreparedRequest, Response, Session
    from requests.adapters import HTTPAdapter

    class Patient(HTTPAdapter):
        def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
            options["timeout"] = options.get("timeout") or (CONNECT_SECONDS, ANSWER_SECONDS)
            return super().send(request, *args, **options)

    class TimedRestCatalog(RestCatalog):
        def _config_headers(self, session: Session) -> None:  # the first call with a new session, before any request
            super()._config_headers(session)
            for scheme in ("http://", "https://"):
                session.mount(scheme, Patient())

    return TimedRestCatalog(name, **properties)


def _sql_catalog(settings: LakeSettings, properties: dict[str, str]) -> Catalog:
    """Whoever comes first creates the catalog's own tables; those who come at the same moment look again."""
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    for wait in (0.1, 0.2, 0.4, 0.8, 0.0):
        try:
            return SqlCatalog(settings.catalog.name, uri=_sql_uri(settings), pool_pre_ping="true", **properties)
        except ValueError as error:
            raise ArgumentError(
                "its address cannot be read as postgresql://user:password@host:port/database"
            ) from error
        except SQLAlchemyError as error:
            if not wait or not any(word in str(error) for word in _TOGETHER):
                raise
            time.sleep(wait)
    raise AssertionError("the last try either returns or raises")


def _sql_uri(settings: LakeSettings) -> str:
    from sqlalchemy import URL

    if settings.catalog.uri is None:
        settings.catalog_file.parent.mkdir(parents=True, exist_ok=True)
        _use_wal(settings.catalog_file)
        address = URL.create("sqlite", database=str(settings.catalog_file), query={"timeout": str(BUSY_SECONDS)})
        return address.render_as_string()
    uri = settings.catalog.uri.get_secret_value().replace("postgresql://", "postgresql+psycopg2://", 1)
    if "connect_timeout=" in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}connect_timeout={CONNECT_SECONDS}"


def _use_wal(file: Path) -> None:
    """The journal of a database is changed once; SQLite does not wait for its lock by itself there."""
    connection = sqlite3.connect(file, timeout=BUSY_SECONDS)
    deadline = time.monotonic() + BUSY_SECONDS
    try:
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
    finally:
        connection.close()


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
