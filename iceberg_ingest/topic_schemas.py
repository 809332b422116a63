"""Does a batch fit its topic? Asked once a stream, before anything is acknowledged.

A topic's schema grows and never changes: new columns are fine, a column keeps its type (or a narrower one comes in).
What the table holds is asked once and again when something does not fit; before there is a table, what was sent since
the start of the process counts. The writer checks again against the table itself, so this may be late but not wrong.
"""

import threading
from collections.abc import Callable

import pyarrow as pa

from iceberg_ingest.tokens import TopicName
from iceberg_manager.errors import DataError

_WIDER = {
    pa.int8(): (pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.uint8(): (pa.int32(), pa.int64()),
    pa.uint16(): (pa.int32(), pa.int64()),
    pa.uint32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}
_LARGE = {pa.large_string(): pa.string(), pa.string_view(): pa.string(), pa.large_binary(): pa.binary(),
          pa.binary_view(): pa.binary()}  # fmt: skip


class TopicSchemas:
    """What each topic's columns are. ``load`` asks the table: its schema, or None if there is none yet."""

    def __init__(self, load: Callable[[TopicName], pa.Schema | None]) -> None:
        self._load = load
        self._known: dict[TopicName, dict[str, pa.Field]] = {}
        self._guard = threading.Lock()

    def admit(self, name: TopicName, schema: pa.Schema) -> None:
        """Remember ``schema``'s new columns, or raise a DataError that names the column that does not fit."""
        with self._guard:
            if name not in self._known:
                self._known[name] = self._ask(name)
            try:
                self._check(name, schema)
            except DataError:
                if not (fresh := self._ask(name)):
                    raise
                self._known[name] = fresh
                self._check(name, schema)
            for field in schema:
                self._known[name].setdefault(field.name.lower(), field.with_nullable(True))

    def forget(self, name: TopicName) -> None:
        with self._guard:
            self._known.pop(name, None)

    def _ask(self, name: TopicName) -> dict[str, pa.Field]:
        return {field.name.lower(): field for field in self._load(name) or ()}

    def _check(self, name: TopicName, schema: pa.Schema) -> None:
        known = self._known[name]
        for field in schema:
            there = known.get(field.name.lower())
            if there is not None and not fits(field.type, there.type):
                raise DataError(
                    f"Column {field.name!r} of {name} is {there.type}, not {field.type}. Nothing of this stream was kept."
                )
        sent = {field.name.lower() for field in schema}
        if missing := [field.name for key, field in known.items() if not field.nullable and key not in sent]:
            raise DataError(f"{name} needs the column {missing[0]!r}. Nothing of this stream was kept.")


def fits(given: pa.DataType, there: pa.DataType) -> bool:
    """Can every value of ``given`` be stored as ``there`` without a loss?"""
    given, there = _plain(given), _plain(there)
    if given == there or there in _WIDER.get(given, ()):
        return True
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(there):
        return (given.tz is None) == (there.tz is None)
    if pa.types.is_decimal(given) and pa.types.is_decimal(there):
        return bool(given.scale == there.scale and given.precision <= there.precision)
    lists = pa.types.is_list(given) or pa.types.is_large_list(given)
    if lists and (pa.types.is_list(there) or pa.types.is_large_list(there)):
        return fits(given.value_type, there.value_type)
    if pa.types.is_map(given) and pa.types.is_map(there):
        return fits(given.key_type, there.key_type) and fits(given.item_type, there.item_type)
    if pa.types.is_struct(given) and pa.types.is_struct(there):
        known = {field.name: field.type for field in there}
        return all(field.name not in known or fits(field.type, known[field.name]) for field in given)
    return False


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return _LARGE.get(kind, kind)
