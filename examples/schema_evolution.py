"""Let a table grow while its past stays as it was. Run: python examples/schema_evolution.py [LAKE]"""

import sys
import tempfile

import pandas as pd

from iceberg_manager.errors import LakeError
from iceberg_manager.manager import IcebergManager


def main(lake: str) -> None:
    manager = IcebergManager(lake)
    manager.create_table("users", {"id": "int", "name": "string"})
    manager.insert_data("users", pd.DataFrame({"id": [1], "name": ["Ada"]}))
    first = manager.get_current_snapshot("users")

    manager.add_column("users", "email", "string")
    manager.rename_column("users", "name", "full_name")
    manager.alter_column("users", "id", "long")
    manager.insert_data("users", [{"id": 2**40, "full_name": "Emil", "email": "emil@example.com"}])
    print("now: ", manager.query_table("users").columns)
    print("then:", manager.query_snapshot("users", first.id).columns)

    try:
        manager.alter_column("users", "id", "int")
    except LakeError as error:
        print("refused:", error)
    for version in manager.schema_history("users"):
        print(f"schema {version.schema_id}: {', '.join(version.changes)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
