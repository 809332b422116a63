"""Register: a Parquet file becomes a data file of the table as it is, without a copy, under an address that is used once.

The file is renamed to ``_registered/<batch>/`` first, so that no listing sees it again and no other spelling of its path
exists. From the commit on the table owns it: expiry may delete it. A crash before the commit leaves it there, named by the
intent; a file that turns out not to fit is put back.
"""

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from iceberg_manager.errors import first_line
from iceberg_manager.landing.batches import Claimed, Intent
from iceberg_manager.landing.folder import Folder
from iceberg_manager.landing.readers import BadFileError, form_of

NAME_MAPPING = "schema.name-mapping.default"
REGISTERED = "_registered"


def registered_name(intent: Intent, file: Claimed) -> str:
    return f"{REGISTERED}/{intent.batch}/{file.name}"


def register(folder: Folder, table: Table, intent: Intent) -> list[DataFile]:
    """The batch's files as data files, each in its final place."""
    return [_data_file(folder, table, intent, file) for file in intent.files]


def name_mapping(table: Table) -> dict[str, str]:
    """Files without field ids are read by name: without this property readers see nothing but null."""
    if NAME_MAPPING in table.properties:
        return {}
    return {NAME_MAPPING: table.schema().name_mapping.model_dump_json()}


def _data_file(folder: Folder, table: Table, intent: Intent, file: Claimed) -> DataFile:
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    if form_of(file.name) != "parquet":
        raise BadFileError(file.name, "only Parquet files can be registered; take it in with how='copy'")
    place = registered_name(intent, file)
    folder.move(file.name, place)
    try:
        return parquet_file_to_data_file(table.io, table.metadata, folder.uri(place))
    except Exception as error:
        folder.move(place, file.name)
        if isinstance(error, FileNotFoundError):
            raise
        raise BadFileError(file.name, f"it cannot be registered: {first_line(error)}") from error
