"""SQL over every table of the lake, past and present, and over its catalog. Run: python examples/duckdb_queries.py [LAKE]"""

import sys
import tempfile

from iceberg_manager import generate
from iceberg_manager.manager import IcebergManager


def main(lake: str) -> None:
    manager = IcebergManager(lake)
    rows = generate.rows("users", 10_000, seed=1)
    manager.create_table("shop.users", rows.schema)
    manager.insert_data("shop.users", rows)
    first = manager.get_current_snapshot("shop.users")
    manager.delete_data("shop.users", "country = 'US'")

    print(
        manager.sql("SELECT country, count(*) AS users FROM shop.users GROUP BY ALL ORDER BY users DESC LIMIT 3").df()
    )
    print(manager.sql(f"SELECT count(*) AS users_then FROM shop.users AT (VERSION => {first.id})").df())
    print(manager.sql("SELECT operation, added_rows, total_rows FROM table_snapshots ORDER BY committed_at").df())
    plan = manager.explain("shop.users", "id < 100")
    print(f"a query for id < 100 reads {plan.files_read} of {plan.files} files")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
