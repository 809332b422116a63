"""One table's landing at work: plan batches, take each in exactly once, tidy up behind it. Sensors, runs and the command
line all come through here.

The steps of a batch, and what a crash after each leaves, stand in docs/adr/0007-landing-protocol.md; ``STEPS`` names
them. Every step may be done again. What a batch cannot take (bad, changed or repeated files) leaves it before the commit, so
that its neighbours are taken in all the same.
"""

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from iceberg_manager import evolution
from iceberg_manager.catalog import load_table
from iceberg_manager.commits import CommitResult, Stamp, find
from iceberg_manager.errors import ConflictError, DataError, InputError, LakeError, NotFoundError, first_line
from iceberg_manager.history import summary
from iceberg_manager.landing import copying, drift, registering, rejects
from iceberg_manager.landing.batches import COMMITTED, BatchReport, Claimed, Intent, Ledger, new_intent
from iceberg_manager.landing.committing import (
    StaleBatchError,
    commit_batch,
    discard,
    is_committed,
    taken_by_others,
)
from iceberg_manager.landing.copying import BadFilesError
from iceberg_manager.landing.folder import Entry, Folder, folder_of
from iceberg_manager.landing.listing import arrivals, batches, markers_of
from iceberg_manager.landing.policy import PROPERTY, LandingPolicy
from iceberg_manager.landing.quarantine import set_aside
from iceberg_manager.landing.readers import BadFileError, LandedFile, content_hash
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
STEPS = ("planned", "read", "committed", "rejected", "remembered", "moving", "moved")
_TRIES = 10
_HASHING = 4
_NO_COLUMNS = Schema()
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/=")


@dataclass
class _Read:
    """The rows of a batch as data files, with what was noticed on the way."""

    files: list[DataFile]
    rejects: rejects.Rejects
    properties: dict[str, str] = field(default_factory=dict)
    engine: str = "arrow"


class Landing:
    """The landing folder of one table. ``spark`` opens a session when one is needed; ``reached`` is told of each step."""

    def __init__(
        self,
        settings: LakeSettings,
        catalog: Catalog,
        table: TableName,
        policy: LandingPolicy,
        spec: TableSpec | None = None,
        spark: "Callable[[], SparkSession] | None" = None,
        reached: Callable[[str], None] = lambda step: None,
    ) -> None:
        self.settings, self.catalog, self.table, self.policy, self.spec = settings, catalog, table, policy, spec
        self.folder: Folder = folder_of(settings, table)
        self.ledger = Ledger(self.folder)
        self._spark, self._reached = spark, reached

    def plan(self, limit: int | None = None, seconds: float | None = None, wait: float = 0) -> list[Intent]:
        """Claim what is ready in batches, and return all batches that are to be carried out, old ones first."""
        with self.folder.locked(wait):
            intents = self.ledger.unfinished()
            claimed = {file.name for one in intents for file in (*one.files, *one.duplicates)}
            enough = limit * self.policy.max_files if limit else None
            ready = arrivals(self.folder, self.policy, claimed, enough, seconds).ready
            for batch in batches(self.not_handled(ready), self.policy):
                if limit and len(intents) >= limit:
                    break
                intents.append(self.ledger.save(new_intent(str(self.table), batch)))
                self._reached("planned")
            return intents

    def run(self, run_id: str = "", wait: float = 30) -> list[BatchReport]:
        """One whole pass: everything that is ready now. A batch that fails is reported and keeps its files."""
        return [self.carry_out(intent.batch, run_id, wait) for intent in self.plan(wait=wait)]

    def carry_out(self, batch: str, run_id: str = "", wait: float = 30) -> BatchReport:
        """Take one batch in, or finish what an earlier attempt began."""
        report = BatchReport(str(self.table), batch)
        try:
            with self.folder.locked(wait):
                intent = self.ledger.load(batch)
                if intent is None:
                    report.state = "done before"
                    return report
                self._take_in(self.ledger.begin(intent), report, run_id)
        except ConflictError as error:
            report.state, report.error = "busy", str(error)
        except (LakeError, OSError) as error:
            said = str(error) if isinstance(error, LakeError) else f"{first_line(error)}; the batch keeps its files."
            report.state, report.error = "failed", said
            self._note_failure(batch, said)
        return report

    def _note_failure(self, batch: str, said: str) -> None:
        try:
            if intent := self.ledger.load(batch):
                self.ledger.save(replace(intent, failed=said))
        except OSError as error:
            _log.warning("the failure of batch %s could not be written down: %s", batch, first_line(error))

    def _take_in(self, intent: Intent, report: BatchReport, run_id: str) -> None:
        stamp = Stamp(f"landing-{intent.batch}", run_id, "/".join(self.table.identifier), batch=intent.batch)
        for _ in range(_TRIES):
            table = self._existing()
            if table and (is_committed(table, intent) or find(table, stamp.commit_id)):
                self._finish(intent, report, stamp, None)
                return
            intent = self._looked_at(intent, table, report)
            if not intent.files:
                self._finish(intent, report, stamp, None)
                return
            try:
                result = self._commit(intent, report, stamp)
            except BadFilesError as bad:
                intent = self._without(intent, bad.errors, report)
            except (StaleBatchError, FileNotFoundError) as stale:
                _log.info("batch %s is looked at again: %s", intent.batch, stale)
            else:
                self._finish(intent, report, stamp, result)
                return
        raise ConflictError(f"{self.table}: the files of batch {intent.batch} kept changing; they stay where they are.")

    def _commit(self, intent: Intent, report: BatchReport, stamp: Stamp) -> CommitResult:
        """Read the batch and commit it; what was written for a commit that did not happen is removed."""
        opened = self._opened(intent)
        table = self._fitting_table(opened, report)
        read = self._read(table, intent, opened)
        report.engine = read.engine
        try:
            read.rejects.save(self.folder, intent)
            self._reached("read")
            result = commit_batch(
                self.catalog,
                intent,
                read.files,
                self.ledger,
                stamp,
                lambda file: self._seen(intent, file),
                read.properties,
            )
        except (StaleBatchError, ConflictError):
            if self.policy.how == "copy":
                discard(table, read.files)
            raise
        self._reached("committed")
        return result

    def _opened(self, intent: Intent) -> dict[str, tuple[LandedFile, pa.Schema]]:
        """Every file with its columns, which also tells most of those that are no such file at all."""
        opened, bad = {}, []
        for file in intent.files:
            try:
                landed = LandedFile(self.folder, self._place(intent, file), self.policy)
                opened[file.name] = (landed, landed.schema())
            except BadFileError as error:
                error.name = file.name
                bad.append(error)
        if bad:
            raise BadFilesError(bad)
        return opened

    def _fitting_table(self, opened: dict[str, tuple[LandedFile, pa.Schema]], report: BatchReport) -> Table:
        """The table, made or grown as the policy allows; files that cannot fit are refused first."""
        given = {
            name: (schema, file.form not in ("csv", "tsv", "json", "jsonl")) for name, (file, schema) in opened.items()
        }
        table = self._existing()
        if table is None:
            table = self._create(given)
        found = drift.compare(table.schema(), given, self.policy.drift)
        for name, (schema, typed) in given.items():
            if typed and name not in found.refused and (why := drift.misfit(table.schema(), schema)):
                found.refused[name] = BadFileError(name, why)
        if found.refused:
            raise BadFilesError(list(found.refused.values()))
        report.dropped_columns = sorted({*report.dropped_columns, *found.dropped})
        if found.added or found.widened:
            changes = {"add": found.added, "alter": found.widened}
            table = evolution.evolve(self._load, changes)
            report.added_columns = sorted({*report.added_columns, *found.added})
        return table

    def _create(self, given: dict[str, tuple[pa.Schema, bool]]) -> Table:
        if self.spec and not self.policy.create_from_first_batch:
            return ensure_table(self.catalog, self.settings, self.spec)
        if not self.policy.create_from_first_batch:
            raise NotFoundError(
                f"There is no table {str(self.table)!r} to take files into; they stay where they are. Create it, or allow "
                "its policy to create it from the first batch (create_from_first_batch, `landing run --create`)."
            )
        found = drift.compare(self.spec.iceberg_schema if self.spec else _NO_COLUMNS, given, "additive")
        if found.refused:
            raise BadFilesError(list(found.refused.values()))
        base = self.spec or TableSpec(str(self.table), schema=found.added, landing=self.policy)
        return ensure_table(self.catalog, self.settings, replace(base, schema={**base.schema, **found.added}))

    def _read(self, table: Table, intent: Intent, opened: dict[str, tuple[LandedFile, pa.Schema]]) -> _Read:
        bad_rows = rejects.Rejects(self.policy)
        if self.policy.how == "register":
            try:
                files = registering.register(self.folder, table, intent)
            except BadFileError as error:
                raise BadFilesError([error]) from error
            return _Read(files, bad_rows, registering.name_mapping(table), "register")
        if self._by_spark(intent, opened):
            try:
                return _Read(self._spark_files(table, intent, opened), bad_rows, engine="spark")
            except DataError as error:
                _log.info("Spark refused a value, reading row by row to find it: %s", first_line(error))
        landed = {name: file for name, (file, _) in opened.items()}
        return _Read(copying.copied(table, landed, self.policy, bad_rows), bad_rows)

    def _by_spark(self, intent: Intent, opened: dict[str, tuple[LandedFile, pa.Schema]]) -> bool:
        """Spark takes typed files with plain names; the rest is read by Arrow, which knows every line by its number."""
        from iceberg_manager.landing.spark_copy import FORMATS

        large = intent.bytes >= self.policy.spark_from_mb * 1024**2
        wanted = self.policy.engine == "spark" or (self.policy.engine == "auto" and large)
        fits = all(
            file.form in FORMATS and _PLAIN.issuperset(self.folder.uri(name)) for name, (file, _) in opened.items()
        )
        return wanted and fits and self._spark is not None

    def _spark_files(
        self, table: Table, intent: Intent, opened: dict[str, tuple[LandedFile, pa.Schema]]
    ) -> list[DataFile]:
        from iceberg_manager.landing import spark_copy

        assert self._spark is not None
        files = {self.folder.uri(name): (file.form, schema) for name, (file, schema) in opened.items()}
        return spark_copy.copied(self._spark(), self.catalog, table, intent.batch, files)

    def _looked_at(self, intent: Intent, table: Table | None, report: BatchReport) -> Intent:
        """The batch with what is still as listed; contents that were taken in before are duplicates."""
        same = [file for file in intent.files if file.same_as(self._seen(intent, file))]
        report.returned += [file.name for file in intent.files if file not in same]
        with ThreadPoolExecutor(_HASHING) as pool:
            hashed = [
                replace(file, content=text)
                for file, text in zip(same, pool.map(lambda one: self._hash(intent, one), same), strict=True)
            ]
        seen = taken_by_others(table, intent) if table else set()
        fresh: dict[str, Claimed] = {}
        twice = list(intent.duplicates)
        for file in hashed:
            known = file.content in fresh or file.content[:32] in seen or self.ledger.handled(file.content)
            if known and file.content:
                twice.append(file)
            elif file.content:
                fresh[file.content] = file
        return self.ledger.save(replace(intent, files=tuple(fresh.values()), duplicates=tuple(twice)))

    def _hash(self, intent: Intent, file: Claimed) -> str:
        """Nothing, for a file that went away meanwhile or that nobody may read."""
        try:
            return content_hash(self.folder, self._place(intent, file))
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise InputError(
                f"{self.folder.uri(file.name)} cannot be read: {first_line(error)}. It stays there."
            ) from error

    def _without(self, intent: Intent, errors: Iterable[BadFileError], report: BatchReport) -> Intent:
        """Bad files leave the batch: first the intent lets go of them, then they move."""
        bad = {error.name: error for error in errors}
        intent = self.ledger.save(replace(intent, files=tuple(file for file in intent.files if file.name not in bad)))
        for error in bad.values():
            report.quarantined.append(set_aside(self.folder, error))
            _log.warning("%s was refused: %s", self.folder.uri(error.name), error)
        return intent

    def _finish(self, intent: Intent, report: BatchReport, stamp: Stamp, result: CommitResult | None) -> None:
        """Everything after the commit. Each step sees what an earlier attempt has done."""
        self._count(intent, report, stamp, result)
        report.rejected = rejects.commit_rejects(self.catalog, self.settings, self.folder, intent, stamp)
        self._reached("rejected")
        self.ledger.remember(intent, by_name=self.policy.after == "leave")
        self._reached("remembered")
        for file in (*intent.files, *intent.duplicates):
            self._put_away(intent, file)
            self._reached("moving")
        self._reached("moved")
        self.ledger.end(intent)

    def _count(self, intent: Intent, report: BatchReport, stamp: Stamp, result: CommitResult | None) -> None:
        table = self._existing()
        ours = find(table, stamp.commit_id) if table else []
        report.files, report.bytes, report.duplicates = len(intent.files), intent.bytes, len(intent.duplicates)
        report.rows = sum(int(summary(one).get("added-records", "0")) for one in ours)
        report.snapshot_id = ours[-1].snapshot_id if ours else None
        at = ours[-1].timestamp_ms / 1000 if ours else time.time()
        report.lag_seconds = round(max((at - file.mtime_ns / 1e9 for file in intent.files), default=0.0), 3)
        report.state = "committed" if result or not intent.files else "finished"
        if not intent.files:
            report.state = "nothing to commit"

    def _put_away(self, intent: Intent, file: Claimed) -> None:
        registered = self.policy.how == "register" and file in intent.files
        if self.policy.after == "leave" or registered:
            return
        name = self._place(intent, file)
        if not file.same_as(self.folder.stat(name)):
            return  # moved by an earlier attempt; or another file has taken the name, which waits its turn
        if self.policy.after == "delete":
            self.folder.delete(name)
        else:
            self.folder.move(name, f"{COMMITTED}/{intent.batch}/{file.name}")
        if self.policy.completeness == "marker":
            self.folder.delete(markers_of(file.name))

    def _place(self, intent: Intent, file: Claimed) -> str:
        """Where a file lies now: a registered one may have been moved by an earlier attempt."""
        if self.policy.how == "register":
            place = registering.registered_name(intent, file)
            if self.folder.stat(place) is not None:
                return place
        return file.name

    def _seen(self, intent: Intent, file: Claimed) -> Entry | None:
        return self.folder.stat(self._place(intent, file))

    def not_handled(self, ready: list[Entry]) -> list[Entry]:
        if self.policy.after != "leave":
            return ready
        return [one for one in ready if not self.ledger.handled(Claimed(one.name, one.size, one.mtime_ns).key)]

    def _load(self) -> Table:
        return load_table(self.catalog, self.table)

    def _existing(self) -> Table | None:
        return self._load() if self.catalog.table_exists(self.table.identifier) else None


def policy_of(catalog: Catalog, table: TableName) -> LandingPolicy | None:
    """The policy that the table carries, or None if it has none or is not there."""
    if not catalog.table_exists(table.identifier):
        return None
    return LandingPolicy.of_property(load_table(catalog, table).properties.get(PROPERTY))
