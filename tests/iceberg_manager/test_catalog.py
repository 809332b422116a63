"""The catalog opens for many at once; where it does not answer, one sentence says so soon, without a password."""

import socket
import sqlite3
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from iceberg_manager import catalog as module
from iceberg_manager.catalog import catalog_errors, list_tables, load_table, login, open_catalog, shown_uri
from iceberg_manager.errors import NotFoundError, UnavailableError
from iceberg_manager.settings import CatalogSettings, LakeSettings, S3Settings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table

SECRET = "hunter2"


def _refused(lake: LakeSettings) -> str:
    """The sentence for a catalog that cannot be opened. The secret is nowhere in what a log would show."""
    started = time.monotonic()
    with pytest.raises(UnavailableError) as error:
        open_catalog(lake)
    assert time.monotonic() - started < 8
    assert SECRET not in "".join(traceback.format_exception(error.value))
    said = str(error.value)
    assert "\n" not in said
    assert said.endswith("Check that it runs and that `catalog` in lake.yaml points to it.")
    return said


def _lake(tmp_path: Path, **catalog: Any) -> LakeSettings:
    return LakeSettings(root=tmp_path, catalog=CatalogSettings(**catalog))


@pytest.fixture
def silent() -> Iterator[int]:
    """A port where someone takes the call and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("kind", "uri", "shown"),
    [
        (
            "postgres",
            f"postgresql://me:{SECRET}@127.0.0.1:1/db",
            "postgresql://127.0.0.1:1/db did not answer: connection",
        ),
        ("postgres", f"postgresql://me:{SECRET}@127.0.0.1:port/db", "its address cannot be read as postgresql://user:"),
        ("postgres", f"postgresql://127.0.0.1:1/db?password={SECRET}", "postgresql://127.0.0.1:1/db did not answer"),
        ("rest", f"http://me:{SECRET}@127.0.0.1:1/api", "http://127.0.0.1:1/api did not answer"),
    ],
)
def test_a_catalog_that_is_not_there_is_one_sentence(tmp_path: Path, kind: str, uri: str, shown: str):
    assert shown in _refused(_lake(tmp_path, type=kind, uri=uri))


def test_a_secret_that_the_cause_repeats_is_left_out(tmp_path: Path):
    lake = _lake(tmp_path, type="rest", uri="http://h", token=SECRET)
    with pytest.raises(UnavailableError, match=r"no entry for \*\*\*") as error, catalog_errors(lake):
        raise OSError(f"no entry for {SECRET}")
    assert SECRET not in "".join(traceback.format_exception(error.value))


def test_a_catalog_that_says_nothing_is_given_up_soon(tmp_path: Path, silent: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.5)
    assert "timed out" in _refused(_lake(tmp_path, type="rest", uri=f"http://127.0.0.1:{silent}"))
    assert "timed out" in _refused(
        _lake(tmp_path, type="rest", uri=f"http://127.0.0.1:{silent}", credential=f"me:{SECRET}")
    )
    # libpq waits two seconds at least
    assert "timeout expired" in _refused(
        _lake(tmp_path, type="postgres", uri=f"postgresql://me:{SECRET}@127.0.0.1:{silent}/db")
    )


def test_the_users_own_time_limit_for_postgres_stays(tmp_path: Path):
    lake = _lake(tmp_path, type="postgres", uri="postgresql://me:pw@h/db?sslmode=require")
    assert make_url(module._sql_uri(lake)).query == {"sslmode": "require", "connect_timeout": "10"}
    lake = _lake(tmp_path, type="postgres", uri="postgresql://me:pw@h/db?connect_timeout=3")
    assert make_url(module._sql_uri(lake)).query == {"connect_timeout": "3"}


@pytest.mark.parametrize("content", [b"this is no database" * 100, None])
def test_a_catalog_file_that_cannot_be_opened_is_one_sentence(tmp_path: Path, content: bytes | None):
    if content is None:
        (tmp_path / "lake").touch()
        said = _refused(LakeSettings(root=tmp_path / "lake"))
    else:
        (tmp_path / "catalog.db").write_bytes(content)
        said = _refused(LakeSettings(root=tmp_path))
    assert said.startswith("The sqlite catalog at ")
    assert "catalog.db did not answer: " in said


def test_passwords_are_decoded_as_every_driver_expects_them():
    assert login("postgresql://me:p%40ss%3Aw@h:5/db") == ("me", "p@ss:w", "h:5/db")
    assert login("postgresql://h/db") == ("", "", "h/db")
    lake = LakeSettings(catalog=CatalogSettings(type="postgres", uri="postgresql://me:pw@h:5/db?password=pw"))
    assert shown_uri(lake) == "postgresql://h:5/db"


def test_many_may_open_a_new_lake_at_once(tmp_path: Path):
    for attempt in range(5):
        lake = LakeSettings(root=tmp_path / str(attempt))
        with ThreadPoolExecutor(8) as pool:
            catalogs = list(pool.map(lambda _, lake=lake: open_catalog(lake), range(8)))
        assert [catalog.list_namespaces() for catalog in catalogs] == [[]] * 8
        with sqlite3.connect(lake.catalog_file) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()


@pytest.mark.parametrize("folder", ["it's", "a b", "50%", "h#x", "ünï"])
def test_a_lakes_folder_may_have_an_odd_name(tmp_path: Path, folder: str):
    lake = LakeSettings(root=tmp_path / folder)
    ensure_table(open_catalog(lake), lake, TableSpec("t", {"id": "long"}))
    assert {path.name for path in tmp_path.iterdir()} == {folder}
    assert [str(name) for name in list_tables(open_catalog(lake))] == ["default.t"]


def test_every_table_is_listed_whatever_its_namespace(settings: LakeSettings):
    catalog = open_catalog(settings)
    for name in ("b.x.y.deep", "a.t", "t", "b.x.t"):
        ensure_table(catalog, settings, TableSpec(name, {"id": "long"}))
    assert [str(name) for name in list_tables(catalog)] == ["a.t", "b.x.t", "b.x.y.deep", "default.t"]


def test_a_table_that_is_not_there_names_the_nearest(settings: LakeSettings):
    catalog = open_catalog(settings)
    ensure_table(catalog, settings, TableSpec("shop.orders", {"id": "long"}))
    with pytest.raises(NotFoundError, match=r"no table 'shop.ordes' in the catalog\. Did you mean 'shop.orders'\?"):
        load_table(catalog, "shop.ordes")
    with pytest.raises(NotFoundError, match=r"no table 'nowhere.at.all' in the catalog\.$"):
        load_table(catalog, "nowhere.at.all")


def test_a_table_whose_metadata_is_gone_is_told_from_one_that_never_was(settings: LakeSettings):
    catalog = open_catalog(settings)
    table = ensure_table(catalog, settings, TableSpec("t", {"id": "long"}))
    Path(table.metadata_location).unlink()
    with pytest.raises(NotFoundError, match=r"knows table 'default.t', but its metadata file is gone"):
        load_table(catalog, "t")


def test_object_store_settings_reach_pyiceberg():
    keys = S3Settings(endpoint="http://h:9", region="eu", access_key_id="k", secret_access_key="s")
    assert module._s3_properties(LakeSettings(warehouse="s3://b", s3=keys)) == {
        "s3.region": "eu", "s3.endpoint": "http://h:9", "s3.access-key-id": "k", "s3.secret-access-key": "s",
    }  # fmt: skip
    assert module._s3_properties(LakeSettings(warehouse="s3://b")) == {}
