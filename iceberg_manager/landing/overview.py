"""What a landing folder holds at this moment, for people: waiting, under way, refused, left alone. Only looks."""

from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog

from iceberg_manager.landing.folder import folder_of, landing_tables
from iceberg_manager.landing.listing import arrivals
from iceberg_manager.landing.passes import Landing, policy_of
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.landing.quarantine import Refused, refused
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings


@dataclass
class LandingStatus:
    """One table's landing folder."""

    table: str
    folder: str
    ready: int = 0
    ready_bytes: int = 0
    incomplete: int = 0
    unfinished: list[dict[str, object]] = field(default_factory=list)
    quarantined: list[Refused] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)


def status(settings: LakeSettings, catalog: Catalog, names: list[str]) -> list[LandingStatus]:
    """Of the tables named, or of all that take in files."""
    return [_status(settings, catalog, table) for table in chosen(settings, catalog, names)]


def chosen(settings: LakeSettings, catalog: Catalog, names: list[str]) -> list[TableName]:
    """Those named; else every table with a landing folder and a policy of its own."""
    if names:
        return [TableName.parse(name) for name in names]
    return [table for table in landing_tables(settings) if policy_of(catalog, table) is not None]


def _status(settings: LakeSettings, catalog: Catalog, table: TableName) -> LandingStatus:
    policy = policy_of(catalog, table) or LandingPolicy()
    landing = Landing(settings, catalog, table, policy)
    folder = folder_of(settings, table)
    intents = landing.ledger.unfinished()
    claimed = {file.name for one in intents for file in (*one.files, *one.duplicates)}
    found = arrivals(folder, policy, claimed)
    ready = landing.not_handled(found.ready)
    return LandingStatus(
        table=str(table),
        folder=folder.address,
        ready=len(ready),
        ready_bytes=sum(one.size for one in ready),
        incomplete=len(found.waiting),
        unfinished=[
            {"batch": one.batch, "files": len(one.files), "attempts": one.attempts, "error": one.failed}
            for one in intents
        ],
        quarantined=refused(folder),
        ignored=found.ignored,
    )
