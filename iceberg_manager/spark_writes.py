"""Writes a Spark DataFrame to a table, in the mode its spec declares, through the one door for commits.

Every mode is one atomic change of main. Rows that are already there as given are not written again: a merge takes only
what differs, and an overwrite with the same rows commits nothing, so that nothing downstream becomes stale.

What takes more than one snapshot (delete, then append), or must pass an audit first, is prepared on a branch and
published by a fast-forward. A crash before that leaves main untouched and a branch that expires by itself; a refused
audit leaves the branch for a week, so that its rows can be looked at.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import reduce

from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, StructType
from pyspark.sql import Column, DataFrame, DataFrameWriterV2, SparkSession
from pyspark.sql import functions as F

from iceberg_manager.catalog import load_table
from iceberg_manager.commits import COMMIT_ID, CommitResult, Stamp, commit, translate
from iceberg_manager.errors import AuditError, DataError
from iceberg_manager.names import did_you_mean
from iceberg_manager.slices import Slice
from iceberg_manager.spec import TableSpec

_log = logging.getLogger(__name__)
_SESSION_STAMP = "spark.sql.iceberg.snapshot-property."
_REFUSED_DAYS = 7
Audit = Callable[[Table, int], None]
"""Looks at a snapshot that is not published yet, and raises an AuditError if it must not be."""


class SparkWriter:
    """Writes to one table of one catalog, from one Spark session."""

    def __init__(self, spark: SparkSession, catalog: Catalog, spec: TableSpec) -> None:
        self._spark, self._catalog, self._spec = spark, catalog, spec
        self._main = spec.table.quoted(catalog.name)

    def write(
        self, rows: DataFrame, stamp: Stamp, part: Slice | None = None, audit: Audit | None = None
    ) -> CommitResult:
        """Commit ``rows`` once. ``part`` is the slice that a partitioned run stands for."""
        table = self._load()
        try:
            rows = fit(rows, table.schema(), self._spec.name)
        except DataError:
            raise
        except Exception as error:
            raise translate(error, 1) from error
        change = _Change(self._spark, self._spec, table, rows, part)
        if change.atomic and audit is None:
            return commit(self._load, stamp, lambda properties: change.apply(self._main, self._main, properties))
        return commit(self._load, stamp, lambda properties: self._staged(change, properties, audit))

    def _load(self) -> Table:
        return load_table(self._catalog, self._spec.table)

    def _staged(self, change: "_Change", stamp: Mapping[str, str], audit: Audit | None) -> None:
        """Apply the change to a branch, look at it, then move main there, if main has not moved meanwhile."""
        branch = f"staged_{stamp[COMMIT_ID][:24]}".replace("-", "_")
        keep = False
        self._sql(f"ALTER TABLE {self._main} CREATE OR REPLACE BRANCH `{branch}` RETAIN {_REFUSED_DAYS} DAYS")
        try:
            change.apply(self._main, f"{self._main}.`branch_{branch}`", stamp)
            table = self._load()
            staged = table.metadata.refs[branch].snapshot_id
            if staged == table.metadata.current_snapshot_id:
                return
            if audit:
                audit(table, staged)
            name = ".".join(f"`{part}`" for part in self._spec.table.identifier)
            self._sql(f"CALL `{self._catalog.name}`.system.fast_forward('{name}', 'main', '{branch}')")
        except AuditError as refused:
            keep = True
            raise AuditError(
                f"{refused} They stay on branch {branch} for {_REFUSED_DAYS} days.", refused.outcomes
            ) from None
        finally:
            if not keep:
                with suppress(Exception):
                    self._sql(f"ALTER TABLE {self._main} DROP BRANCH IF EXISTS `{branch}`")

    def _sql(self, statement: str) -> None:
        self._spark.sql(statement).collect()


class _Change:
    """What a write does, whichever branch it is applied to. Applied anew, from the start, after a conflict."""

    def __init__(self, spark: SparkSession, spec: TableSpec, table: Table, rows: DataFrame, part: Slice | None) -> None:
        self._spark, self._spec, self._rows = spark, spec, rows
        self._comparable = _comparable(table.schema())
        self._slice = part.sql(table.schema()) if part else None
        aligned = part is None or (part.aligned(table.schema(), table.spec()) and len(table.specs()) == 1)
        self.atomic = spec.write_mode != "delete_insert" and (spec.write_mode == "merge" or aligned)

    def apply(self, main: str, target: str, stamp: Mapping[str, str]) -> None:
        """Compare with ``main``, write to ``target``: main itself or a branch that starts where main is."""
        mode = self._spec.write_mode
        if mode == "append":
            _writer(self._rows, target, stamp).append()
        elif mode == "merge":
            self._merge(main, target, stamp)
        elif mode == "delete_insert":
            self._delete_insert(self._rows, target, f"({self._spec.delete_where})", stamp)
        elif mode == "overwrite_partitions" and self._slice is None:
            _writer(self._rows, target, stamp).overwritePartitions()
        else:
            self._replace(main, target, self._slice or "true", stamp)

    def _merge(self, main: str, target: str, stamp: Mapping[str, str]) -> None:
        """Update what differs, insert what is new. Keys must be there and unique: a merge would insert them twice."""
        key = list(self._spec.key)
        with _kept(self._changes(main)) as changes:
            total, keys, missing, outside = changes.agg(
                F.count("*"),
                F.count_distinct(F.struct(*key)),
                F.count_if(_any_null(key)),
                _count_outside(self._slice or "true"),
            ).collect()[0]
            self._refuse_outside(outside)
            if missing:
                raise DataError(f"{self._spec.name}: {missing} rows have no {' or '.join(key)}; nothing was committed.")
            if keys != total:
                raise DataError(
                    f"{self._spec.name}: {total - keys} rows repeat a {', '.join(key)} of another row; nothing was "
                    "committed. Keep one row per key in the function."
                )
            if total:
                same_key = _all(F.col(f"{target}.`{c}`") == F.col(f"source.`{c}`") for c in key)
                with self._session_stamp(stamp):
                    (
                        changes.alias("source")
                        .mergeInto(target, same_key)
                        .whenMatched().updateAll()
                        .whenNotMatched().insertAll()
                        .merge()
                    )  # fmt: skip

    def _changes(self, main: str) -> DataFrame:
        """The rows that are not in the table exactly as they are. Maps cannot be compared: then all of them."""
        if not self._comparable:
            return self._rows
        rows, current = self._rows, self._spark.table(main)
        return rows.join(current, _all(rows[c].eqNullSafe(current[c]) for c in rows.columns), "left_anti")

    def _replace(self, main: str, target: str, condition: str, stamp: Mapping[str, str]) -> None:
        with _kept(self._rows) as rows:
            if self._same_rows(rows, self._spark.table(main).where(condition), condition):
                _log.info("%s: the same rows are there already; nothing to commit", self._spec.name)
            elif self.atomic:
                _writer(rows, target, stamp).overwrite(F.expr(condition))
            else:
                self._delete_insert(rows, target, condition, stamp)

    def _same_rows(self, rows: DataFrame, current: DataFrame, condition: str) -> bool:
        """Compares counts and two hashes over all rows; refuses rows that lie outside the slice."""
        sides = rows.withColumn("__new", F.lit(True))
        if self._comparable:
            sides = sides.unionByName(current.withColumn("__new", F.lit(False)))
        whole = F.struct(*(f"`{column}`" for column in rows.columns)) if self._comparable else F.lit(0)
        measures = (
            F.count("*").alias("n"),
            F.sum(F.xxhash64(whole).cast("decimal(38,0)")).alias("a"),
            F.sum(F.xxhash64(F.lit("salt"), whole).cast("decimal(38,0)")).alias("b"),
            _count_outside(condition).alias("outside"),
        )
        found = {side["__new"]: side for side in sides.groupBy("__new").agg(*measures).collect()}
        new, old = found.get(True), found.get(False)
        self._refuse_outside(new["outside"] if new else 0)
        if not self._comparable:
            return False
        if not new or not old:
            return new is old
        return all(new[measure] == old[measure] for measure in ("n", "a", "b"))

    def _refuse_outside(self, rows: int) -> None:
        if rows:
            raise DataError(
                f"{self._spec.name}: {rows} rows lie outside the partition that this run writes ({self._slice}); "
                "nothing was committed. Filter them in the function."
            )

    def _delete_insert(self, rows: DataFrame, target: str, condition: str, stamp: Mapping[str, str]) -> None:
        with self._session_stamp(stamp):
            self._spark.sql(f"DELETE FROM {target} WHERE {condition}").collect()
        _writer(rows, target, stamp).append()

    @contextmanager
    def _session_stamp(self, stamp: Mapping[str, str]) -> Iterator[None]:
        """SQL statements take the stamp from the session; it must never reach anyone else's commit."""
        try:
            for key, value in stamp.items():
                self._spark.conf.set(_SESSION_STAMP + key, value)
            yield
        finally:
            for key in stamp:
                with suppress(Exception):
                    self._spark.conf.unset(_SESSION_STAMP + key)


def _writer(rows: DataFrame, target: str, stamp: Mapping[str, str]) -> DataFrameWriterV2:
    writer = rows.writeTo(target)
    for key, value in stamp.items():
        writer = writer.option(f"snapshot-property.{key}", value)
    return writer


def fit(rows: DataFrame, schema: Schema, name: str) -> DataFrame:
    """The rows with the table's columns, in its order and types. A column too many or too few is an error."""
    wanted = [field.name for field in schema.fields]
    if missing := [column for column in wanted if column not in rows.columns]:
        raise DataError(
            f"{name}: the function returned no column {missing[0]!r}.{did_you_mean(missing[0], rows.columns)}"
        )
    if extra := [column for column in rows.columns if column not in wanted]:
        raise DataError(
            f"{name}: the function returned a column {extra[0]!r} that the spec does not declare."
            f"{did_you_mean(extra[0], wanted)} Add it to the schema, or drop it in the function."
        )
    return rows.select([F.col(f"`{field.name}`").cast(spark_type(field.field_type)) for field in schema.fields])


def spark_type(kind: IcebergType) -> str:
    """Spark's name for an Iceberg type."""
    names = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}
    text = str(kind)
    if text in names:
        return names[text]
    return _nested(kind) if not kind.is_primitive else ("binary" if text.startswith("fixed") else text)


def _nested(kind: IcebergType) -> str:
    if isinstance(kind, ListType):
        return f"array<{spark_type(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{spark_type(kind.key_type)},{spark_type(kind.value_type)}>"
    assert isinstance(kind, StructType)
    return f"struct<{','.join(f'`{field.name}`:{spark_type(field.field_type)}' for field in kind.fields)}>"


def _comparable(schema: Schema) -> bool:
    """Spark compares and hashes everything but maps."""
    return not any(isinstance(field.field_type, MapType) for field in schema.fields) and "map<" not in str(schema)


def _any_null(columns: list[str]) -> Column:
    return ~_all(F.col(f"`{column}`").isNotNull() for column in columns)


def _count_outside(condition: str) -> Column:
    return F.count_if(~F.coalesce(F.expr(condition), F.lit(False)))


def _all(conditions: Iterable[Column]) -> Column:
    return reduce(lambda a, b: a & b, conditions)


@contextmanager
def _kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Computed once although it is used twice: to look at, and to write."""
    kept = rows.persist()
    try:
        yield kept
    finally:
        with suppress(Exception):
            kept.unpersist()
