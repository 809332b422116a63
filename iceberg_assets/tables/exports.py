"""Where the demo's data comes from: files, one folder a day, as a shop's systems would drop them."""

from datetime import date
from pathlib import Path

import dagster as dg

from iceberg_assets.demo.generator import Export
from iceberg_manager.settings import LakeSettings
from resources.lake import LakeResource

DAYS = dg.DailyPartitionsDefinition(start_date="2026-11-01")


def folder(lake: LakeSettings, day: str) -> Path:
    """Where the newest export of a day lies."""
    return Path(lake.landing_location) / "shop_exports" / day


@dg.asset(
    key=["exports", "shop"],
    group_name="exports",
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    kinds={"file"},
)
def shop_exports(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult:
    """The shop's files of a day. Each run exports the day anew, with late orders and changed statuses."""
    written = 0
    for day in context.partition_keys:
        place = folder(lake.settings, day)
        revision = _next_revision(place)
        for name, text in Export(date.fromisoformat(day), revision).files().items():
            (place / name).write_text(text)
            written += len(text)
        _drop_web_events(lake.settings, Export(date.fromisoformat(day), revision, orders_per_day=60))
        (place / "revision").write_text(str(revision))
    return dg.MaterializeResult(metadata={"bytes": written, "days": len(context.partition_keys)})


def _drop_web_events(lake: LakeSettings, export: Export) -> None:
    """A file for ``raw.web_events`` to take in. It appears whole: written under a hidden name, then renamed."""
    place = Path(lake.landing_location) / "raw" / "web_events"
    place.mkdir(parents=True, exist_ok=True)
    name = f"{export.day}-{export.revision}.jsonl"
    (place / f".{name}").write_text(export.files()["events.jsonl"])
    (place / f".{name}").rename(place / name)


def _next_revision(place: Path) -> int:
    place.mkdir(parents=True, exist_ok=True)
    last = place / "revision"
    return int(last.read_text()) + 1 if last.exists() else 0
