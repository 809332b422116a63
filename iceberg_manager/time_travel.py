"""Which snapshot is meant: by id, by time, by tag, by branch or by the Dagster run that made it. Reads metadata only.

A time is UTC unless it carries a zone, and means what main pointed at then, rollbacks included. A snapshot reads with the
schema it was written with. What cannot be found is answered with the nearest that can.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from iceberg_manager.errors import InputError, NotFoundError
from iceberg_manager.history import main_line, summary
from iceberg_manager.names import did_you_mean

RUN_ID = "iceberg-assets.run-id"
SHORTEST_RUN = 6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def resolve(
    table: Table,
    *,
    snapshot: int | str | None = None,
    timestamp: str | date | None = None,
    tag: str | None = None,
    branch: str | None = None,
    run: str | None = None,
) -> Snapshot:
    """The one snapshot that is meant; with nothing given, the head of main."""
    given = {"snapshot": snapshot, "timestamp": timestamp, "tag": tag, "branch": branch, "run": run}
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise InputError(
            f"Give one of snapshot, timestamp, tag, branch and run; these were given: {', '.join(chosen)}."
        )
    if snapshot is not None:
        return by_id(table, snapshot)
    if timestamp is not None:
        return at_time(table, timestamp)
    if tag is not None:
        return _by_ref(table, tag, SnapshotRefType.TAG)
    if branch is not None:
        return _by_ref(table, branch, SnapshotRefType.BRANCH)
    if run is not None:
        return _by_run(table, run)
    return _head(table)


def schema_at(table: Table, snapshot: Snapshot | int) -> Schema:
    """The columns that a snapshot reads with: those of its time."""
    found = by_id(table, snapshot) if isinstance(snapshot, int) else snapshot
    schemas = table.schemas()
    return schemas.get(found.schema_id, table.schema()) if found.schema_id is not None else table.schema()


def by_id(table: Table, snapshot: int | str) -> Snapshot:
    """A snapshot that is still there, on whatever branch."""
    try:
        wanted = int(snapshot)
    except ValueError:
        raise InputError(f"{snapshot!r} is not a snapshot id: ids are whole numbers. {_newest(table)}") from None
    if found := table.metadata.snapshot_by_id(wanted):
        return found
    logged = {entry.snapshot_id: entry.timestamp_ms for entry in table.metadata.snapshot_log}
    when = f" (made {show_time(logged[wanted])})" if wanted in logged else ""
    near = _nearest(table, logged[wanted]) if wanted in logged else _newest(table)
    raise NotFoundError(f"Snapshot {wanted}{when} is not in {shown_name(table)}: never made, or expired. {near}")


def at_time(table: Table, moment: str | date) -> Snapshot:
    """What main pointed at then."""
    at = parse_moment(moment)
    at_ms = (at - _EPOCH) // timedelta(milliseconds=1)
    log = sorted(table.metadata.snapshot_log, key=lambda entry: entry.timestamp_ms)
    past = [entry for entry in log if entry.timestamp_ms <= at_ms]
    if not past:
        known = [entry for entry in log if table.metadata.snapshot_by_id(entry.snapshot_id)]
        oldest = f"The oldest is {known[0].snapshot_id} of {show_time(known[0].timestamp_ms)}." if known else ""
        raise NotFoundError(
            f"{shown_name(table)} had no snapshot at {_show(at)}, as far as its history reaches. "
            f"{oldest or 'It was never written to.'}"
        )
    if found := table.metadata.snapshot_by_id(past[-1].snapshot_id):
        return found
    raise NotFoundError(
        f"What {shown_name(table)} held at {_show(at)} was snapshot {past[-1].snapshot_id} of "
        f"{show_time(past[-1].timestamp_ms)}, which has expired. {_nearest(table, at_ms)}"
    )


def parse_moment(moment: str | date) -> datetime:
    """A time with its zone, from text, a datetime or a date; UTC where no zone is given, midnight where no time is."""
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(_spelled(moment))
        except ValueError:
            raise InputError(
                f"{moment!r} is not a time: write it like 2024-01-01 10:00:00 (UTC), 2024-01-01T10:00:00+02:00 "
                "or 2024-01-01."
            ) from None
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        raise InputError(f"{moment} is outside the range of times: the years 1 to 9999, in UTC.") from None


def show_time(timestamp_ms: int) -> str:
    """A snapshot's time for people, in a form that ``parse_moment`` reads back."""
    return _show(_EPOCH + timedelta(milliseconds=timestamp_ms))


def shown_name(table: Table) -> str:
    return ".".join(table.name())


def _spelled(text: str) -> str:
    text = text.strip()
    return text[:-4] + "+00:00" if text.upper().endswith(" UTC") else text


def _show(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S") + (f".{moment.microsecond // 1000:03d}" if moment.microsecond else "")


def _head(table: Table) -> Snapshot:
    if found := table.current_snapshot():
        return found
    raise NotFoundError(f"{shown_name(table)} has no snapshot yet: nothing was ever written to it.")


def _by_ref(table: Table, name: str, kind: SnapshotRefType) -> Snapshot:
    refs = table.metadata.refs
    found = refs.get(name)
    if found and found.snapshot_ref_type == kind:
        return by_id(table, found.snapshot_id)
    if found:
        raise NotFoundError(
            f"{name!r} is a {found.snapshot_ref_type.value} of {shown_name(table)}, not a {kind.value}."
        )
    same = sorted(other for other, ref in refs.items() if ref.snapshot_ref_type == kind)
    hint = did_you_mean(name, same) or (f" It has: {', '.join(same[:10])}." if same else " It has none.")
    raise NotFoundError(f"{shown_name(table)} has no {kind.value} {name!r}.{hint}")


def _by_run(table: Table, run: str) -> Snapshot:
    """One run may make several snapshots; only its last is what the run left behind."""
    if len(run) < SHORTEST_RUN:
        raise InputError(f"{run!r} is too short for a run id: give at least its first {SHORTEST_RUN} characters.")
    runs: dict[str, Snapshot] = {}
    for found in main_line(table):
        stamped = summary(found).get(RUN_ID)
        if stamped:
            runs.setdefault(stamped, found)
    matches = [known for known in runs if known == run] or [known for known in runs if known.startswith(run)]
    if len(matches) == 1:
        return runs[matches[0]]
    if matches:
        raise InputError(f"{run!r} begins several run ids: {', '.join(matches[:5])}. Give more characters.")
    newest = [f"{known} ({show_time(found.timestamp_ms)})" for known, found in list(runs.items())[:3]]
    there = f"The last runs on main: {', '.join(newest)}." if newest else "No snapshot on main carries a run's stamp."
    raise NotFoundError(f"Run {run!r} left no snapshot on main of {shown_name(table)}. {there}")


def _newest(table: Table) -> str:
    return _listed("The newest are", list(main_line(table))[:3]) or "The table has no snapshot yet."


def _nearest(table: Table, at_ms: int) -> str:
    close = sorted(table.metadata.snapshots, key=lambda found: abs(found.timestamp_ms - at_ms))[:2]
    return _listed("The nearest kept are", sorted(close, key=lambda found: found.timestamp_ms)) or "None is kept."


def _listed(intro: str, snapshots: Iterable[Snapshot]) -> str:
    shown = [f"{found.snapshot_id} ({show_time(found.timestamp_ms)})" for found in snapshots]
    return f"{intro} {', '.join(shown)}." if shown else ""
