"""``@iceberg_table``: a plain PySpark function becomes an asset that owns an Iceberg table.

The function's parameters are DataFrames: those named in ``inputs``, and any other name means the table of that name in
the same namespace. It may also ask for ``context``, ``spark`` and ``lake`` (the settings). It returns the rows; how they
reach the table is the spec's affair. A step that is tried again commits once: the commit id is made of the run (the
first of its retries), the asset, the partition and the code.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import dagster as dg
from pyiceberg.table import Table
from pyspark.sql import DataFrame

from iceberg_assets.inputs import Source
from iceberg_assets.metadata import commit_metadata, definition_metadata
from iceberg_assets.partitions import check_partitions, slice_of, stamp_of
from iceberg_manager import query
from iceberg_manager.catalog import catalog_errors, load_table
from iceberg_manager.checks import Check, CheckOutcome, evaluate, unique
from iceberg_manager.commits import CommitResult, Stamp
from iceberg_manager.errors import AuditError, ConflictError, LakeError, SpecError, UnavailableError
from iceberg_manager.names import TableName
from iceberg_manager.spark_writes import SparkWriter
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import declared_differences, ensure_table
from resources.duckdb import LakeDuckDBResource
from resources.lake import LakeResource
from resources.spark import SparkResource

Transform = Callable[..., DataFrame]
_OFFERED = ("context", "spark", "lake")
_RETRIES = 2
_AS_DECLARED = Check("schema_as_declared", "The table has the columns and types that its spec declares.", "0")
_specs: WeakKeyDictionary[dg.AssetsDefinition, TableSpec] = WeakKeyDictionary()


def iceberg_table(
    spec: TableSpec,
    *,
    inputs: Mapping[str, dg.AssetsDefinition | str] | None = None,
    deps: Sequence[dg.AssetsDefinition | dg.AssetKey | str] = (),
    partitions_def: dg.PartitionsDefinition | None = None,
    group_name: str | None = None,
    owners: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
    automation_condition: dg.AutomationCondition | None = None,
) -> Callable[[Transform], dg.AssetsDefinition]:
    """Declare the table that the decorated function fills. ``inputs`` maps parameters to table assets or names.

    Pass the asset itself where both are partitioned: then a run reads just the partitions that it depends on.
    """
    check_partitions(spec, partitions_def)

    def decorate(function: Transform) -> dg.AssetsDefinition:
        sources = _sources(spec, function, inputs or {})
        table = _Table(spec, function, sources, partitions_def)

        @dg.asset(
            name=spec.table.table,
            key_prefix=list(spec.table.namespace),
            description=spec.description or inspect.getdoc(function),
            ins={argument: dg.AssetIn(source.key, dagster_type=dg.Nothing) for argument, source in sources.items()},
            deps=deps,
            partitions_def=partitions_def,
            backfill_policy=dg.BackfillPolicy.single_run(),
            group_name=group_name or "_".join(spec.table.namespace),
            owners=owners,
            tags=dict(tags or {}),
            kinds={"iceberg", "pyspark"},
            metadata=definition_metadata(spec),
            code_version=table.code_version,
            check_specs=[_check_spec(spec, check) for check in table.checks],
            automation_condition=automation_condition,
            pool="__".join(spec.table.identifier),
        )
        def asset(
            context: dg.AssetExecutionContext, lake: LakeResource, spark: SparkResource, duckdb: LakeDuckDBResource
        ) -> Iterator[dg.MaterializeResult | dg.AssetCheckResult]:
            try:
                yield table.materialize(context, lake, spark, duckdb)
            except AuditError as refused:
                yield from _check_results(refused.outcomes)
                raise dg.Failure(str(refused), allow_retries=False) from refused
            except (UnavailableError, ConflictError) as error:
                context.log.warning(str(error))
                raise dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=2) from error
            except LakeError as error:
                raise dg.Failure(str(error), allow_retries=False) from error

        _specs[asset] = spec
        return asset

    return decorate


def remember_spec(asset: dg.AssetsDefinition, spec: TableSpec) -> None:
    """So that other tables can read from an asset that was made elsewhere."""
    _specs[asset] = spec


def table_spec(asset: dg.AssetsDefinition) -> TableSpec | None:
    """The spec behind an asset, or None for one that was not made here."""
    return _specs.get(asset)


def declared_specs(assets: Iterable[object]) -> dict[str, TableSpec]:
    """The specs of those among these assets that are tables, by the table's name. Dagster hands out copies of assets."""
    specs = {asset.key: spec for asset, spec in _specs.items()}
    keys = [asset.key for asset in assets if isinstance(asset, dg.AssetsDefinition)]
    return {specs[key].name: specs[key] for key in keys if key in specs}


class _Table:
    """One table asset at work: read pinned inputs, run the function, commit, check, report."""

    def __init__(
        self,
        spec: TableSpec,
        function: Transform,
        sources: Mapping[str, Source],
        partitions: dg.PartitionsDefinition | None,
    ) -> None:
        self.spec, self.function, self.sources, self.partitions = spec, function, sources, partitions
        self.code_version = _code_version(spec, function)
        given = [check.name for check in spec.checks]
        own = [unique(*spec.key)] if spec.key else []
        self.rules = [*(check for check in own if check.name not in given), *spec.checks]
        self.checks = [_AS_DECLARED, *self.rules]

    def materialize(
        self, context: dg.AssetExecutionContext, lake: LakeResource, spark: SparkResource, duckdb: LakeDuckDBResource
    ) -> dg.MaterializeResult:
        with catalog_errors(lake.settings):
            ensure_table(lake.catalog, lake.settings, self.spec)
            keys = list(context.partition_keys) if self.partitions else []
            pins, arguments = self._arguments(context, lake, spark)
        rows = self.function(**arguments)
        if not hasattr(rows, "writeTo"):
            raise SpecError(f"{self.spec.name}: the function must return a DataFrame, not {type(rows).__name__}.")

        def check(table: Table, snapshot: int | None) -> list[CheckOutcome]:
            with duckdb.get_connection() as connection:
                return self._check(table, evaluate(connection, query.scan(table, snapshot), self.rules))

        def audit(table: Table, snapshot: int) -> None:
            outcomes = check(table, snapshot)
            if broken := [o.check.name for o in outcomes if not o.passed and o.check.severity == "error"]:
                raise AuditError(f"{self.spec.name}: rows break {', '.join(broken)} and were not published.", outcomes)

        with catalog_errors(lake.settings):
            writer = SparkWriter(spark.spark_session, lake.catalog, self.spec)
            part = slice_of(self.spec, self.partitions, keys) if self.partitions else None
            stamp = self._stamp(context, keys, pins)
            result = writer.write(rows, stamp, part, audit if self.spec.audit else None)
            table = load_table(lake.catalog, self.spec.table)
            return self._report(table, result, check(table, result.snapshot_id), pins)

    def _arguments(
        self, context: dg.AssetExecutionContext, lake: LakeResource, spark: SparkResource
    ) -> tuple[dict[str, int], dict[str, Any]]:
        """What the function asks for, and the snapshot that each input is read at."""
        wanted = inspect.signature(self.function).parameters
        arguments: dict[str, Any] = {}
        if "context" in wanted:
            arguments["context"] = context
        if "lake" in wanted:
            arguments["lake"] = lake.settings
        if "spark" in wanted:
            arguments["spark"] = spark.spark_session
        pins: dict[str, int] = {}
        for argument, source in self.sources.items():
            keys = source.partition_keys(context, argument, self.partitions is not None)
            snapshot = source.pin(context, lake, keys)
            arguments[argument] = source.read(spark.spark_session, lake, snapshot, keys)
            if snapshot is not None:
                pins[str(source.name)] = snapshot
        return pins, arguments

    def _stamp(self, context: dg.AssetExecutionContext, keys: Sequence[str], pins: Mapping[str, int]) -> Stamp:
        run = context.run
        retried = {"dagster/is_resume_retry", "dagster/retry_number"} & run.tags.keys()
        work = (run.root_run_id if retried else None) or run.run_id
        partition = stamp_of(self.partitions, keys) if self.partitions else ""
        identity = "|".join((work, self.spec.name, partition, self.code_version))
        return Stamp(
            commit_id=hashlib.sha256(identity.encode()).hexdigest()[:32],
            run_id=run.run_id,
            asset="/".join(self.spec.table.identifier),
            partition=partition,
            code_version=self.code_version,
            inputs=pins,
        )

    def _check(self, table: Table, outcomes: Sequence[CheckOutcome]) -> list[CheckOutcome]:
        differences = declared_differences(table, self.spec)
        return [CheckOutcome(_AS_DECLARED, not differences, len(differences), "; ".join(differences)), *outcomes]

    def _report(
        self, table: Table, result: CommitResult, outcomes: Sequence[CheckOutcome], pins: dict[str, int]
    ) -> dg.MaterializeResult:
        return dg.MaterializeResult(
            metadata=commit_metadata(self.spec, result, table.schema(), pins)
            | {"iceberg/table_uuid": str(table.metadata.table_uuid)},
            data_version=dg.DataVersion(str(result.data_version)) if result.data_version is not None else None,
            check_results=list(_check_results(outcomes)),
        )


def _code_version(spec: TableSpec, function: Transform) -> str:
    """Changes when the rows could: with the function and what the spec says of them, not with checks or retention."""
    shape = (spec.name, dict(spec.schema), spec.partition_by, spec.key, spec.write_mode, spec.delete_where)
    return hashlib.sha256(f"{shape!r}{inspect.getsource(function)}".encode()).hexdigest()[:12]


def _check_results(outcomes: Sequence[CheckOutcome]) -> Iterator[dg.AssetCheckResult]:
    for outcome in outcomes:
        said: dict[str, Any] = {"measured": outcome.measured} if outcome.measured is not None else {}
        yield dg.AssetCheckResult(
            check_name=outcome.check.name,
            passed=outcome.passed,
            severity=_severity(outcome.check),
            metadata=said | ({"detail": outcome.detail} if outcome.detail else {}),
        )


def _check_spec(spec: TableSpec, check: Check) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        check.name,
        asset=dg.AssetKey(list(spec.table.identifier)),
        description=check.description,
        blocking=check.severity == "error",
    )


def _severity(check: Check) -> dg.AssetCheckSeverity:
    return dg.AssetCheckSeverity.ERROR if check.severity == "error" else dg.AssetCheckSeverity.WARN


def _sources(
    spec: TableSpec, function: Transform, inputs: Mapping[str, dg.AssetsDefinition | str]
) -> dict[str, Source]:
    """Where each parameter's rows come from."""
    wanted = [name for name in inspect.signature(function).parameters if name not in _OFFERED]
    if clash := sorted(set(_OFFERED) & inputs.keys()):
        raise SpecError(f"{spec.name}: input {clash[0]!r} has the name of something that is always offered.")
    if unused := sorted(inputs.keys() - set(wanted)):
        raise SpecError(f"{spec.name}: input {unused[0]!r} is declared, but the function does not take it.")
    return {name: _source(inputs.get(name, ".".join((*spec.table.namespace, name)))) for name in wanted}


def _source(given: dg.AssetsDefinition | str) -> Source:
    if isinstance(given, str):
        return Source(TableName.parse(given), None, None)
    spec = table_spec(given)
    if spec is None:
        raise SpecError(f"{given.key.to_user_string()} is not an Iceberg table: name it under deps, not inputs.")
    return Source(spec.table, spec, given.partitions_def)
