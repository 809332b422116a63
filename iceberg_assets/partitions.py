"""From Dagster partitions to slices of a table, and to the text that a commit is stamped with."""

from collections.abc import Sequence

import dagster as dg

from iceberg_manager.errors import SpecError
from iceberg_manager.slices import Slice, Values, Window, slice_column
from iceberg_manager.spec import TableSpec


def check_partitions(spec: TableSpec, partitions: dg.PartitionsDefinition | None) -> None:
    """Refuse, when the asset is declared, what could not be run safely."""
    if partitions is None:
        return
    if not isinstance(partitions, dg.TimeWindowPartitionsDefinition | dg.StaticPartitionsDefinition):
        raise SpecError(f"{spec.name}: partitions may be time windows (daily, hourly …) or static.")
    if isinstance(partitions, dg.StaticPartitionsDefinition):
        for key in partitions.get_partition_keys():
            if "," in key or "..." in key:
                raise SpecError(f"{spec.name}: partition {key!r} holds ',' or '...', which separate partitions.")
    if spec.write_mode not in ("overwrite_partitions", "merge"):
        raise SpecError(
            f"{spec.name}: a partitioned asset cannot be written by {spec.write_mode}: running a partition again would "
            "add its rows twice or remove the others'. Use overwrite_partitions or merge."
        )
    slice_column(spec, by_time=isinstance(partitions, dg.TimeWindowPartitionsDefinition))


def slice_of(spec: TableSpec, partitions: dg.PartitionsDefinition, keys: Sequence[str]) -> Slice:
    """The rows that these partitions stand for."""
    if isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        windows = [partitions.time_window_for_partition_key(key) for key in (keys[0], keys[-1])]
        return Window(slice_column(spec, by_time=True), windows[0].start, windows[1].end)
    return Values(slice_column(spec, by_time=False), tuple(keys))


def stamp_of(partitions: dg.PartitionsDefinition, keys: Sequence[str]) -> str:
    """``2026-01-01``, ``2026-01-01...2026-01-07`` or ``eu,us``."""
    if len(keys) > 1 and isinstance(partitions, dg.TimeWindowPartitionsDefinition):
        return f"{keys[0]}...{keys[-1]}"
    return ",".join(keys)
