"""Made-up rows are the same for the same seed, look real, and stream."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from iceberg_manager import generate
from iceberg_manager.errors import InputError
from iceberg_manager.generate import BLOCK_ROWS


def test_the_same_seed_gives_the_same_rows_in_any_batch_size():
    whole = generate.rows("users", BLOCK_ROWS + 5_000, seed=3).read_all()
    odd = generate.rows("users", BLOCK_ROWS + 5_000, seed=3, batch_rows=7_919).read_all()
    assert whole.num_rows == BLOCK_ROWS + 5_000
    assert whole.equals(odd)
    other = generate.rows("users", BLOCK_ROWS + 5_000, seed=4).read_all()
    assert not any(whole[name].equals(other[name]) for name in whole.column_names if name != "id")


def test_more_rows_begin_with_the_same_rows():
    few, many = (generate.rows("users", count, seed=1).read_all() for count in (1_000, BLOCK_ROWS + 1))
    assert many.slice(0, 1_000).equals(few)


def test_batches_have_the_size_that_was_asked_for():
    sizes = [len(batch) for batch in generate.rows("users", 25_000, batch_rows=10_000)]
    assert sizes == [10_000, 10_000, 5_000]


def test_the_file_holds_the_same_rows_as_plain_columns(tmp_path: Path):
    written = generate.write_parquet_batch(tmp_path / "users.parquet", 70_000, seed=2)
    assert (written.rows, written.bytes) == (70_000, written.path.stat().st_size)
    assert pq.read_table(written.path).equals(generate.rows("users", 70_000, seed=2).read_all())
    assert [path.name for path in tmp_path.iterdir()] == ["users.parquet"]


def test_rows_look_real():
    table = generate.rows("users", 20_000).read_all()
    assert table["id"].to_pylist() == list(range(1, 20_001))
    assert pc.count_distinct(table["email"]).as_py() == 20_000
    assert table.schema.field("created_at").type == pa.timestamp("us", "UTC")
    assert table.schema.field("amount").type == pa.decimal128(12, 2)
    assert pc.min(table["amount"]).as_py() >= 0
    first = table.slice(0, 1).to_pylist()[0]
    assert first["email"].startswith(first["name"].lower().replace(" ", ".") + ".1@")
    assert json.loads(first["payload"]).keys() == {"plan", "device", "visits", "newsletter"}


def test_countries_are_skewed():
    shares = generate.rows("users", 50_000).read_all().group_by("country").aggregate([("id", "count")]).to_pylist()
    counts = {row["country"]: row["id_count"] for row in shares}
    assert max(counts, key=counts.__getitem__) == "US"
    assert counts["US"] > 5 * counts["ZA"] > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "user"}, "Did you mean 'users'"),
        ({"rows": -1}, "cannot be negative"),
        ({"batch_rows": 0}, "at least one row"),
    ],
)
def test_bad_input_is_refused(given: dict, said: str):
    with pytest.raises(InputError, match=said):
        generate.rows(**{"kind": "users", "rows": 10} | given)


def test_no_rows_are_an_empty_stream_and_a_valid_file(tmp_path: Path):
    assert generate.rows("users", 0).read_all().num_rows == 0
    assert pq.read_table(generate.write_parquet_batch(tmp_path / "none.parquet", 0).path).num_rows == 0


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="There is no folder"):
        generate.write_parquet_batch(tmp_path / "nowhere" / "users.parquet", 10)
