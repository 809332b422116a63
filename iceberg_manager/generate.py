"""Made-up rows for demos, tests and benchmarks: from a seed, realistic, fast, and of any number in flat memory.

The same kind, seed and number of rows give the same rows, whatever the batch size; a larger number of rows begins with the
same rows. A Parquet file appears under its name when it is complete: a crash leaves at most a file that ends in ``.part``.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iceberg_manager.errors import InputError
from iceberg_manager.names import did_you_mean

BLOCK_ROWS = 65_536  # rows are made in blocks of this size, each from its own seed
BATCH_ROWS = 2 * BLOCK_ROWS
GROUP_BLOCKS = 8  # blocks in a Parquet row group
_THREADS = 2
_AHEAD = 4
_START = 1_577_836_800_000_000  # 2020-01-01, in microseconds
_STEP, _JITTER = 1_000_000, 3_600_000_000
_FIRST = (
    "Ada Adam Aisha Alba Amir Ana Anders Aylin Ben Bo Carla Chen Clara Daan Diego Elif Emil Emma Eva Femke Freja "
    "Hana Hugo Ida Ines Ivan Jan Jonas Julia Kai Kofi Lena Leo Lin Luca Maja Mateo Mei Mila Nadia Noor Olga Oskar "
    "Priya Ravi Sofia Tariq Yuki Zofia Zoe"
)
_LAST = (
    "Andersson Becker Bianchi Costa Demir Diaz Dubois Fischer Garcia Hansen Hoffmann Ivanov Jansen Johnson Khan "
    "Kim Kowalska Kumar Larsen Lee Lindqvist Lopez Martin Meyer Moreau Muller Nguyen Novak Nowak Okafor Olsen "
    "Patel Pereira Petit Popov Rossi Santos Schmidt Silva Singh Smith Sorensen Suzuki Tanaka Visser Wagner Wang "
    "Weber Yilmaz Zhang"
)
_COUNTRIES = "US DE GB FR IN BR ES IT NL PL SE JP CA AU MX TR NO DK FI PT CH AT BE KR ZA"
_DOMAINS = ("example.com", "example.org", "example.net", "mail.example", "post.example")
_PLANS, _DEVICES = ("free", "free", "free", "basic", "basic", "pro", "team"), ("ios", "android", "web", "web")
_PAYLOADS = 4096


@dataclass(frozen=True)
class Written:
    """A file that was made."""

    path: Path
    rows: int
    bytes: int


def rows(
    kind: str = "users", rows: int = 1_000_000, seed: int = 0, batch_rows: int = BATCH_ROWS
) -> "pa.RecordBatchReader":
    """A stream of made-up rows in batches of ``batch_rows``; two cores make the next ones while one is used."""
    _check(kind, rows, batch_rows)
    blocks = (_plain(block) for block in _blocks(kind, rows, seed))
    return pa.RecordBatchReader.from_batches(KINDS[kind].schema, _rebatched(blocks, batch_rows))


def write_parquet_batch(
    path: str | Path,
    rows: int = 1_000_000,
    kind: str = "users",
    seed: int = 0,
    compression: str = "snappy",
) -> Written:
    """Writes made-up rows to one Parquet file, in row groups of half a million."""
    import pyarrow.parquet as pq

    _check(kind, rows, BATCH_ROWS)
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"There is no folder {path.parent}: create it, or write elsewhere.")
    part = path.with_name(path.name + ".part")
    schema = KINDS[kind].encoded
    repeating = _repeating(schema)
    counted = [field.name for field in schema if not pa.types.is_string(field.type) and field.name not in repeating]
    options = {"compression": compression, "store_schema": False, "use_dictionary": repeating}
    try:
        with pq.ParquetWriter(part, schema, write_statistics=counted, **options) as writer:
            blocks = _blocks(kind, rows, seed)
            while group := list(islice(blocks, GROUP_BLOCKS)):
                writer.write_table(pa.Table.from_batches(group), row_group_size=GROUP_BLOCKS * BLOCK_ROWS)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    part.replace(path)
    return Written(path, rows, path.stat().st_size)


def _check(kind: str, rows: int, batch_rows: int) -> None:
    if kind not in KINDS:
        hint = did_you_mean(kind, list(KINDS)) or f" Known kinds: {', '.join(KINDS)}."
        raise InputError(f"There is no kind of rows {kind!r}.{hint}")
    if rows < 0 or batch_rows < 1:
        raise InputError("rows cannot be negative, and a batch holds at least one row.")


def _repeating(schema: "pa.Schema") -> list[str]:
    return [field.name for field in schema if pa.types.is_dictionary(field.type)]


def _blocks(kind: str, rows: int, seed: int) -> Iterator["pa.RecordBatch"]:
    """Blocks in order, a few of them made ahead by threads: numpy and Arrow work outside Python's lock."""
    make = KINDS[kind].make
    pending: deque[Future[pa.RecordBatch]] = deque()
    with ThreadPoolExecutor(_THREADS) as pool:
        for number in range(-(-rows // BLOCK_ROWS)):
            pending.append(pool.submit(make, seed, number))
            if len(pending) > _AHEAD:
                yield pending.popleft().result()
        last = rows % BLOCK_ROWS or BLOCK_ROWS
        while pending:
            block = pending.popleft().result()
            yield block if pending else block.slice(0, last)


def _rebatched(blocks: Iterator["pa.RecordBatch"], size: int) -> Iterator["pa.RecordBatch"]:
    """The same rows in batches of another size; the last may be smaller."""
    held: list[pa.RecordBatch] = []
    count = 0
    for block in blocks:
        held.append(block)
        count += len(block)
        while count >= size:
            whole = _one(held)
            yield whole.slice(0, size)
            held = [whole.slice(size)] if count > size else []
            count -= size
    if count:
        yield _one(held)


def _one(batches: Sequence["pa.RecordBatch"]) -> "pa.RecordBatch":
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _plain(block: "pa.RecordBatch") -> "pa.RecordBatch":
    """Repeating values spelled out: tables and most readers want text, not dictionaries."""
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in block.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=block.schema.names)


@lru_cache
def _name_pool() -> tuple["pa.Array", "pa.Array"]:
    """Every full name, and the same as the front part of an e-mail address."""
    names = [f"{first} {last}" for first in _FIRST.split() for last in _LAST.split()]
    return pa.array(names), pa.array([name.lower().replace(" ", ".") + "." for name in names])


@lru_cache
def _countries() -> "pa.Array":
    return pa.array(_COUNTRIES.split())


@lru_cache
def _country_lots() -> npt.NDArray[np.int8]:
    """65,536 lots, drawn evenly, of which a country holds the fewer the further down the list it stands."""
    weights = 1 / np.arange(1, len(_countries()) + 1) ** 1.1
    shares = np.floor(np.cumsum(weights / weights.sum()) * 65_536).astype(np.int64)
    return np.searchsorted(shares, np.arange(65_536), side="right").clip(max=len(weights) - 1).astype(np.int8)


@lru_cache(maxsize=8)
def _payload_pool(seed: int) -> "pa.Array":
    dice = np.random.default_rng([seed, _PAYLOADS])
    # No two alike: Parquet's writer takes a dictionary as it is only if its values are distinct.
    draws = zip(*(dice.permutation(_PAYLOADS).tolist() for _ in range(4)), strict=True)
    return pa.array(
        f'{{"plan":"{_PLANS[a % 7]}","device":"{_DEVICES[b % 4]}","visits":{c},"newsletter":{str(d % 4 == 0).lower()}}}'
        for a, b, c, d in draws
    )


def _users(seed: int, number: int) -> "pa.RecordBatch":
    """One block of users."""
    import pyarrow.compute as pc

    dice = np.random.Generator(np.random.SFC64([seed, number]))
    names, fronts = _name_pool()
    ids = np.arange(number * BLOCK_ROWS + 1, (number + 1) * BLOCK_ROWS + 1)
    who = dice.integers(0, len(names), BLOCK_ROWS, dtype=np.uint16).astype(np.int16)
    domain = dice.integers(0, len(_DOMAINS), BLOCK_ROWS, dtype=np.uint8).view(np.int8)
    country = _country_lots()[dice.integers(0, 65_536, BLOCK_ROWS, dtype=np.uint16)]
    joined = _START + ids * _STEP + dice.integers(0, _JITTER, BLOCK_ROWS)
    cents = np.exp(dice.standard_normal(BLOCK_ROWS, dtype=np.float32) * 1.1 + 8.0).astype(np.int64)
    payload = dice.integers(0, _PAYLOADS, BLOCK_ROWS, dtype=np.uint16).astype(np.int16)
    email = pc.binary_join_element_wise(
        fronts.take(pa.array(who)), pa.array(ids).cast(pa.string()), _domain_pool().take(pa.array(domain)), ""
    )
    columns = [
        pa.array(ids),
        pa.DictionaryArray.from_arrays(pa.array(who), names),
        email,
        pa.DictionaryArray.from_arrays(pa.array(country), _countries()),
        pa.array(joined).cast(pa.timestamp("us", "UTC")),
        _decimals(cents),
        pa.DictionaryArray.from_arrays(pa.array(payload), _payload_pool(seed)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_USERS)


@lru_cache
def _domain_pool() -> "pa.Array":
    return pa.array([f"@{domain}" for domain in _DOMAINS])


def _decimals(cents: npt.NDArray[np.int64]) -> "pa.Array":
    """Amounts that are not negative, straight from their bytes: Arrow's cast would look at each."""
    wide = np.zeros((len(cents), 2), dtype=np.int64)
    wide[:, 0] = cents
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(cents), [None, pa.py_buffer(wide)])


@dataclass(frozen=True)
class _Kind:
    """How to make one block of a kind; ``encoded`` is its schema while repeating values are still dictionaries."""

    make: Callable[[int, int], "pa.RecordBatch"]
    encoded: "pa.Schema"

    @property
    def schema(self) -> "pa.Schema":
        """As readers see it."""
        plain = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in self.encoded]
        return pa.schema(list(zip(self.encoded.names, plain, strict=True)))


_USERS = pa.schema(
    {
        "id": pa.int64(),
        "name": pa.dictionary(pa.int16(), pa.string()),
        "email": pa.string(),
        "country": pa.dictionary(pa.int8(), pa.string()),
        "created_at": pa.timestamp("us", "UTC"),
        "amount": pa.decimal128(12, 2),
        "payload": pa.dictionary(pa.int16(), pa.string()),
    }
)
KINDS = {"users": _Kind(_users, _USERS)}
