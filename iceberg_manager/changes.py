"""What one commit does to a table, as data: made by a plan, carried out by ``metadata_commit``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table


@dataclass(frozen=True)
class Changes:
    """What one commit does to a table: data files that come and go, table properties, and perhaps a newer schema."""

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    removed_properties: frozenset[str] = frozenset()
    schema: Schema | None = None

    @property
    def has_files(self) -> bool:
        return bool(self.added or self.removed)


class StalePlanError(CommitFailedException):
    """The table changed in a way that the plan did not see: it has to be made again."""


def spec_id(file: DataFile, base: Table) -> int:
    """PyIceberg leaves the spec out of files that it has just written with the table's own."""
    found: int = getattr(file, "_spec_id", base.metadata.default_spec_id)
    return found
