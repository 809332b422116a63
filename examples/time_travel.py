"""Read a table as it was, compare, and go back. Run: python examples/time_travel.py [LAKE]"""

import sys
import tempfile

import pandas as pd

from iceberg_manager.manager import IcebergManager


def main(lake: str) -> None:
    manager = IcebergManager(lake)
    manager.create_table("prices", {"item": "string", "price": "double"}, key=["item"])
    manager.insert_data("prices", pd.DataFrame({"item": ["tea", "coffee"], "price": [3.0, 4.0]}))
    before = manager.get_current_snapshot("prices")
    manager.tag("prices", "before_sale", before.id)

    manager.upsert_data("prices", [{"item": "tea", "price": 2.5}, {"item": "cocoa", "price": 5.0}], "item")
    print("now:", sorted(row["item"] for row in manager.query_table("prices")))
    print("then:", sorted(row["item"] for row in manager.query_snapshot("prices", before.id)))
    print("by tag:", manager.query_table("prices", tag="before_sale", where="item = 'tea'").rows())
    print("at that time:", len(manager.query_as_of("prices", before.time)), "rows")

    changes = manager.diff_snapshots("prices", before.id, key="item")
    print(f"diff: {changes.rows_added} added, {changes.rows_removed} removed, {changes.rows_changed} changed")
    for change in changes.changed:
        print(f"  {change.key['item']}: {change.old['price']} -> {change.new['price']}")

    undone = manager.rollback("prices", before.id)
    print(f"rolled back {len(undone.undone)} snapshot; tea costs",
          manager.query_table("prices", where="item = 'tea'").rows()[0]["price"])  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if len(sys.argv) > 1 else folder)
