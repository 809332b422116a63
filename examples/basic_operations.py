"""Create a table, fill it, change it, read it. Run: python examples/basic_operations.py [LAKE]"""

import sys
import tempfile

import pandas as pd

from iceberg_manager.arrow_writes import expr
from iceberg_manager.manager import IcebergManager


def main(lake: str) -> None:
    manager = IcebergManager(lake)
    schema = {"columns": {"id": "long", "name": "string", "age": "int"}, "required": ["id"]}
    manager.create_table("users", schema, key=["id"])

    manager.insert_data("users", pd.DataFrame({"id": [1, 2], "name": ["Ada", "Emil"], "age": [36, 41]}))
    manager.insert_data("users", [{"id": 3, "name": "Noor", "age": 29}])
    print("inserted:", *sorted(manager.query_table("users").rows(), key=lambda row: row["id"]), sep="\n  ")

    manager.update_data("users", {"age": expr("age + 1")}, where="name = 'Ada'")
    manager.delete_data("users", "age < 30")
    done = manager.upsert_data(
        "users", [{"id": 2, "name": "Emil B.", "age": 42}, {"id": 4, "name": "Zoe", "age": 50}], "id"
    )
    print(f"\nupsert: {done.inserted} inserted, {done.updated} updated")
    now = manager.query_table("users", where="age > 30", columns=["id", "name", "age"]).df()
    print("\nnow:", now.sort_values("id").to_string(index=False), sep="\n")

    print("\nhistory:")
    for snapshot in manager.list_snapshots("users"):
        print(f"  {snapshot.operation:<10} {snapshot.total_rows} rows")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
