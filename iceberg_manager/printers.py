"""How each kind of answer looks to a person: facts first, then small tables, and changes in words.

At a terminal, text is folded to its width, and rows too wide for it are shown one below the other. In a pipe nothing is
folded or cut.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from iceberg_manager.output import Row, plain, say

SHOWN = 1000
NARROWEST = 20
Blocks = Iterator[RenderableType]


def show(found: Any) -> None:
    """Print one answer."""
    printer = _PRINTERS.get(_kind(found), _anything)
    _print(printer(found))


def show_created(table: Any) -> None:
    """A new table: one sentence, then its columns."""
    _print(_created(table))


def _kind(found: Any) -> str:
    one = found[0] if isinstance(found, list) and found else found
    return type(one).__name__


def _print(blocks: Iterable[RenderableType]) -> None:
    terminal = sys.stdout.isatty()
    console = Console(highlight=False) if terminal else Console(highlight=False, width=100_000, force_terminal=False)
    with console.capture() as captured:
        for block in blocks:
            console.print(block if not isinstance(block, str) else Text(block))
    sys.stdout.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def _anything(found: Any) -> Blocks:
    if isinstance(found, Mapping):
        yield _facts({str(key).replace("_", " "): _cell(plain(value)) for key, value in found.items()})
        return
    rows = plain(found.head(SHOWN + 1)) if hasattr(found, "head") else plain(found)
    columns = list(found.columns) if hasattr(found, "columns") else list(rows[0]) if rows else []
    yield _grid(columns, rows[:SHOWN]) if rows else ("no rows" if columns else "nothing")
    if len(rows) > SHOWN:
        say(f"the first {SHOWN:,} rows; --output csv or json gives all")


def _overview(found: list[Row]) -> Blocks:
    if not found or "problem" not in found[0]:
        yield from _anything(found)
        return
    rows = [
        {"table": one["table"], "rows": one["rows"], "files": one["files"], "size": _size(one["bytes"]),
         "snapshots": one["snapshots"], "changed (UTC)": _time(one["changed"])}
        for one in found
    ]  # fmt: skip
    yield _grid(list(rows[0]), rows)
    yield from (f"{one['table']}: {one['problem']}" for one in found if one["problem"])


def _created(table: Any) -> Blocks:
    layout = f", {_layout(table)}" if table.partition_by or table.sort_by else ""
    yield f"created {table.name} with {_count(len(table.columns), 'column')}{layout}"
    yield _columns(table)


def _described(table: Any) -> Blocks:
    changed = f"last changed {_time(table.changed)} UTC" if table.changed else "never written to"
    size = f"{_count(table.rows, 'row')} in {_count(table.files, 'file')} ({_size(table.bytes)})"
    yield f"{table.name}: {size}, {_count(table.snapshots, 'snapshot')}, {changed}"
    facts = {
        "location": table.location,
        "format": f"Iceberg v{table.format_version}",
        "current snapshot": table.current_snapshot,
        "key": ", ".join(table.key),
        "partitioned by": ", ".join(table.partition_by),
        "sorted by": ", ".join(table.sort_by),
    }
    yield _facts({name: _cell(value or None) for name, value in facts.items()})
    yield _columns(table, before="\n")
    if table.references:
        refs = [
            {
                "branch or tag": ref.name,
                "kind": ref.kind,
                "snapshot": str(ref.snapshot_id),
                "kept": _kept(ref.retention),
            }
            for ref in table.references
        ]
        yield Padding(_grid(list(refs[0]), refs), (1, 0, 0, 0))
    if table.properties:
        listed = [{"property": key, "value": value} for key, value in sorted(table.properties.items())]
        yield Padding(_grid(["property", "value"], listed), (1, 0, 0, 0))


def _columns(table: Any, before: str = "") -> RenderableType:
    with_docs = any(column["doc"] for column in table.columns)
    rows = [
        {"column": column["name"], "type": column["type"], "": "required" if column["required"] else ""}
        | ({"description": column["doc"]} if with_docs else {})
        for column in table.columns
    ]
    return Padding(_grid(list(rows[0]), rows), (1 if before else 0, 0, 0, 0))


def _layout(table: Any) -> str:
    parts = {"partitioned by": table.partition_by, "sorted by": table.sort_by}
    return ", ".join(f"{how} {', '.join(columns)}" for how, columns in parts.items() if columns)


def _differences(diff: Any) -> Blocks:
    yield f"{diff.table} from snapshot {diff.from_snapshot} to {diff.to_snapshot}"
    changed = "" if diff.rows_changed is None else f", {diff.rows_changed:,} changed"
    yield f"rows: {diff.rows_added:,} added, {diff.rows_removed:,} removed{changed}"
    files = f"{_count(diff.files_added, 'file')} added, {diff.files_removed:,} removed"
    yield f"files: {files}; {_size(diff.bytes_read)} read to compare"
    yield from _some_rows("added", diff.added.column_names, plain(diff.added), diff.rows_added)
    yield from _some_rows("removed", diff.removed.column_names, plain(diff.removed), diff.rows_removed)
    changes = [
        {**plain(one.key), "column": name, "before": plain(one.old[name]), "after": plain(one.new[name])}
        for one in diff.changed
        for name in one.old
    ]
    columns = list(changes[0]) if changes else []
    yield from _some_rows("changed", columns, changes, diff.rows_changed or 0, len(diff.changed))
    yield from (f"column {_schema_change(change)}" for change in diff.schema)
    yield from (f"property {_property_change(change)}" for change in diff.properties or ())
    if diff.properties is None:
        yield "properties: not known, their old metadata file is gone"


def _some_rows(what: str, columns: list[str], rows: list[Row], total: int, shown: int | None = None) -> Blocks:
    if not rows:
        return
    shown = len(rows) if shown is None else shown
    yield Text(f"\n{what}" + (f" (the first {shown:,} of {total:,})" if shown < total else ""), style="bold")
    yield Padding(_grid(columns, rows), (0, 0, 0, 2))


def _schema_change(change: Any) -> str:
    said = {
        "added": f"{change.column} was added ({change.new})",
        "dropped": f"{change.column} was dropped ({change.old})",
        "renamed": f"{change.old} is called {change.new} now",
        "retyped": f"{change.column} was {change.old}, is {change.new} now",
        "required": f"{change.column} was {change.old}, is {change.new} now",
    }
    return said[change.kind]


def _property_change(change: Any) -> str:
    if change.old is None:
        return f"{change.key} was set to {change.new}"
    return f"{change.key} was removed" if change.new is None else f"{change.key}: {change.old} → {change.new}"


def _explained(plan: Any) -> Blocks:
    at = f"at snapshot {plan.snapshot_id}" if plan.snapshot_id else "which was never written to"
    yield f"{plan.table}, {at}, read by {plan.engine}"
    bytes_total = "" if plan.bytes_total is None else f" of {_size(plan.bytes_total)}"
    rows_total = "" if plan.rows_total is None else f" of {plan.rows_total:,}"
    skipped = [
        f"{count:,} skipped by {why}"
        for count, why in ((plan.files_skipped_by_partition, "partition"),
                           (plan.files_skipped_by_statistics, "column statistics")) if count
    ]  # fmt: skip
    facts = {
        "condition": plan.condition or "none: every row",
        "manifests": f"{plan.manifests:,}: {plan.manifests_skipped:,} skipped, {plan.manifests_read:,} read",
        "files": f"{plan.files:,}: {', '.join([*skipped, f'{plan.files_read:,} read'])}",
        "bytes": f"{_size(plan.bytes_read)}{bytes_total}",
        "rows": f"{plan.rows_in_files_read:,}{rows_total} are in the files that are read",
    }
    if plan.delete_files:
        facts["deletes"] = f"{_count(plan.delete_files, 'delete file')} applied while reading"
    yield _facts(facts)


def _rolled_back(plan: Any) -> Blocks:
    if plan.from_snapshot == plan.to_snapshot:
        yield f"{plan.table} is at snapshot {plan.to_snapshot} already: nothing to do"
        return
    undone = f"takes {_count(len(plan.undone), 'snapshot')} off main:" if plan.undone else "takes nothing off main"
    yield f"rolling {plan.table} back to snapshot {plan.to_snapshot} {undone}"
    yield from (f"  {line}" for line in plan.undone)
    if plan.restored:
        yield f"and brings {_count(len(plan.restored), 'snapshot')} back:"
        yield from (f"  {line}" for line in plan.restored)
    yield "No snapshot or file is deleted; columns and properties stay as they are now."


def _expiring(report: Any) -> Blocks:
    stay = sum(report.kept.values())
    if not report.snapshots and not report.references:
        yield f"nothing of {report.table} goes: {_count(stay, 'snapshot')} stay"
    else:
        freed = f"{_count(report.data_files, 'data file')} ({_size(report.bytes)})"
        yield f"{_count(len(report.snapshots), 'snapshot')} of {report.table} go, and {freed} with them:"
        yield from (f"  {snapshot}" for snapshot in report.snapshots[:10])
        if len(report.snapshots) > 10:
            yield f"  and {len(report.snapshots) - 10:,} more (--output json lists all)"
        yield from (f"  {name}, a branch or tag past its retention" for name in report.references)
        yield from _stopping(report.stops)
        yield f"{_count(stay, 'snapshot')} stay:"
    yield from (f"  {count:,}: {why}" for why, count in report.kept.items())


def _stopping(stops: Sequence[str]) -> Blocks:
    if stops:
        yield "what would stop working:"
        yield from (f"  {one}" for one in stops[:10])
        if len(stops) > 10:
            yield f"  and {len(stops) - 10:,} more (--output json lists all)"


def _maintained(found: Any) -> Blocks:
    if found.dry_run and found.planned:
        rows = [
            {"table": one.table, "action": one.kind, "gain": f"{one.gain.health:g}", "takes": f"{one.cost.seconds:.1f} s",
             "why": one.reason}
            for one in found.planned
        ]  # fmt: skip
        yield _grid(list(rows[0]), rows)
    elif found.results:
        rows = [
            {"table": one.table, "action": one.action, "files": _change(one, "files"), "bytes": _change(one, "bytes"),
             "deletes": _change(one, "delete_files"), "manifests": _change(one, "manifests"),
             "snapshots": _change(one, "snapshots"), "took": f"{one.seconds:.1f} s"}
            for one in found.results
        ]  # fmt: skip
        yield _grid(list(rows[0]), rows)
        yield from (f"{one.table}: {one.action} failed: {one.error}" for one in found.results if one.error)
    else:
        yield "nothing to do"
    yield from (f"left: {one.table}{f', {one.kind}' if one.kind else ''}: {one.reason}" for one in found.skips[:SHOWN])


def _change(done: Any, what: str) -> str:
    if done.before is None or done.after is None:
        return "-"
    shown = _size if what == "bytes" else "{:,}".format
    before, after = getattr(done.before, what), getattr(done.after, what)
    return shown(after) if before == after else f"{shown(before)} -> {shown(after)}"


def _healthy(found: Any) -> Blocks:
    if isinstance(found, list):
        yield from _anything(found)
        return
    yield f"{found.table}: health {found.score:g} of 100"
    rows = [{"part": one.name, "score": one.score, "costs": round(one.lost, 1), "why": one.why} for one in found.parts]
    yield _grid(list(rows[0]), rows)


def _pins(found: Sequence[Any]) -> Blocks:
    rows = [
        {"table": one.table, "name": one.name, "kind": one.kind, "made (UTC)": _time(one.made),
         "kept": _kept(one.retention), "files alone": one.files, "bytes alone": _size(one.bytes)}
        for one in found
    ]  # fmt: skip
    yield _grid(list(rows[0]), rows)


def _orphaned(found: Any) -> Blocks:
    young = f"; {_count(found.young, 'file')} more are too young to judge" if found.young else ""
    yield f"{_count(found.files, 'orphaned file')} ({_size(found.bytes)}) in {found.location}{young}"
    yield from (f"  {path}" for path in found.examples)
    if found.files > len(found.examples):
        yield f"  and {found.files - len(found.examples):,} more (--output json lists all)"


def _schema_lines(versions: Sequence[Any]) -> Blocks:
    rows = [
        {"schema": version.schema_id, "since (UTC)": _time(version.since) if version.since else "-", "change": change}
        for version in versions
        for change in version.changes
    ]
    yield _grid(list(rows[0]), rows)


_PRINTERS: dict[str, Callable[[Any], Blocks]] = {
    "TableInfo": _described,
    "Diff": _differences,
    "Explanation": _explained,
    "Rollback": _rolled_back,
    "Report": _expiring,
    "SchemaVersion": _schema_lines,
    "Maintained": _maintained,
    "Health": _healthy,
    "Pinned": _pins,
    "Orphans": _orphaned,
    "dict": lambda found: _overview(found) if isinstance(found, list) else _anything(found),
}


def _grid(columns: Sequence[str], rows: Sequence[Row]) -> RenderableType:
    """Rows as a table, or, where that would squeeze them, one record below the other."""
    cells = [[_cell(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    room = Console().width if sys.stdout.isatty() else sys.maxsize
    if sum(widths) + 2 * (len(widths) - 1) > room and sum(min(width, NARROWEST) + 2 for width in widths) > room:
        return _records(columns, cells)
    grid = Grid(box=None, header_style="bold", pad_edge=False)
    for number, name in enumerate(columns):
        justify: Literal["left", "right"] = "right" if _numeric(rows, number) else "left"
        grid.add_column(Text(name), overflow="fold", no_wrap=widths[number] <= NARROWEST, justify=justify)
    for line in cells:
        grid.add_row(*map(Text, line))
    return grid


def _records(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> RenderableType:
    grid = Grid(box=None, show_header=False, pad_edge=False)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for number, line in enumerate(cells, start=1):
        grid.add_row(Text(f"row {number}"), "")
        for name, value in zip(columns, line, strict=True):
            grid.add_row(Text(f"  {name}"), Text(value))
    return grid


def _facts(facts: Mapping[str, str]) -> RenderableType:
    grid = Grid(box=None, show_header=False, pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(Text(f"  {name}"), Text(value))
    return grid


def _numeric(rows: Sequence[Row], number: int) -> bool:
    values = [value for row in rows if (value := list(row.values())[number]) is not None]
    return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(not isinstance(item, dict | list) for item in value):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping | list):
        import json

        return json.dumps(value, ensure_ascii=False, default=str)
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(value))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _size(number: int | None) -> str:
    """Bytes for people."""
    if number is None:
        return "-"
    size, units = float(number), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:,.0f} {units[0]}" if units[0] == "bytes" else f"{size:,.1f} {units[0]}"


def _time(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment else "never"


def _kept(retention: timedelta | None) -> str:
    if retention is None:
        return "for ever"
    days = retention.total_seconds() / 86400
    return f"{days:g} days"
