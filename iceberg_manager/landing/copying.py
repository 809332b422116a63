"""Copy-in without a JVM: the rows of a batch, file after file, as the table's data files. Memory stays bounded.

A file that turns out bad when others are half written stops the whole; then the rest is read through without
writing, so that all bad files of the batch are known and the next try is the last.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from iceberg_manager import arrow_files
from iceberg_manager.fitting import Fitting
from iceberg_manager.landing.drift import LenientFitting
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.landing.readers import BadFileError, LandedFile
from iceberg_manager.landing.rejects import Rejects


class BadFilesError(Exception):
    """Files of the batch that are refused, by name."""

    def __init__(self, errors: Sequence[BadFileError]) -> None:
        super().__init__(", ".join(error.name for error in errors))
        self.errors = list(errors)


def copied(table: Table, files: Mapping[str, LandedFile], policy: LandingPolicy, rejects: Rejects) -> list[DataFile]:
    """Data files that belong to nobody until they are committed; bad rows go to ``rejects``."""
    fitting = LenientFitting(table.schema()) if policy.drift == "ignore" else Fitting(table.schema())
    try:
        return arrow_files.write(table, _rows(files, fitting, rejects))
    except BadFileError:
        raise BadFilesError(_all_bad(files, fitting, policy)) from None


def _rows(files: Mapping[str, LandedFile], fitting: Fitting, rejects: Rejects) -> Iterator[pa.RecordBatch]:
    for file in files.values():
        yield from file.batches(fitting, rejects.note)


def _all_bad(files: Mapping[str, LandedFile], fitting: Fitting, policy: LandingPolicy) -> list[BadFileError]:
    found = []
    for file in files.values():
        try:
            for _ in file.batches(fitting, Rejects(policy).note):
                pass
        except BadFileError as error:
            found.append(error)
    return found
