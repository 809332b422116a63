"""A declaration is right or refused at once, by a sentence that names the table and the mistake."""

from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from iceberg_manager.checks import in_range, not_null
from iceberg_manager.errors import InputError, SpecError
from iceberg_manager.spec import Column, MaintenancePolicy, TableSpec, parse_type

SCHEMA = {
    "id": "long",
    "at": "timestamptz",
    "day": "date",
    "who": "string",
    "big name": "string",
    "tags": "list<string>",
}


@pytest.mark.parametrize(
    "text",
    [
        "boolean", "int", "long", "float", "double", "decimal(10,2)", "date", "timestamp", "timestamptz", "string",
        "binary", "fixed[16]", "list<string>", "map<string, long>", "struct<a: int, b: list<struct<c: decimal(4, 2)>>>",
        "map<string, map<string, list<int>>>", "list< struct<a: int> >",
    ],
)  # fmt: skip
def test_every_type_that_all_readers_share_is_taken(text: str):
    spec = TableSpec("t", {"before": "int", "x": text, "after": "int"})
    ids = [field.field_id for field in spec.iceberg_schema.fields]
    assert ids == [1, 2, 3]
    assert len(spec.iceberg_schema.column_names) >= 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bigint", "'bigint' is not an Iceberg type"), ("", "'' is not an Iceberg type"), ("decimal(50,2)", "is not"),
        ("decimal(2,5)", "more digits after the point"), ("list<string", "not an Iceberg type"), ("list<>", "is not"),
        ("map<string>", "not complete"), ("struct<>", "not complete"), ("struct<a>", "not complete"),
        ("struct<a: int, a: int>", "names a field twice"), ("list<uuid>", "readers disagree about uuid"),
        ("time", "declare it as long"), ("uuid", "declare it as string"), ("timestamp_ns", "declare it as timestamp"),
        ("timestamptz_ns", "declare it as timestamptz"), ("unknown", "readers disagree"), ("geometry", "readers disagree"),
    ],
)  # fmt: skip
def test_a_type_that_cannot_work_is_refused_with_its_column(text: str, said: str):
    with pytest.raises(SpecError, match=r"^shop\.orders\.x: ") as error:
        TableSpec("shop.orders", {"x": text})
    assert said in str(error.value)


def test_a_thousand_nested_fields_are_numbered():
    fields = ", ".join(f"f{n}: int" for n in range(12_000))
    assert len(parse_type(f"struct<{fields}>", count(1), "t.x").fields) == 12_000  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schema": {}}, "needs at least one column"),
        ({"schema": {"a.b": "int"}}, "'a.b' is not a column name"),
        ({"schema": {"a`b": "int"}}, "is not a column name"),
        ({"schema": {"": "int"}}, "'' is not a column name"),
        ({"schema": {" a": "int"}}, "' a' is not a column name"),
        ({"schema": {"a": 5}}, "5 is not a type"),
        ({"schema": {"id": "int", "ID": "int"}}, "'id' and 'ID' differ in case only"),
        ({"write_mode": "upsert"}, "write_mode 'upsert' is not one of append"),
        ({"write_mode": "merge"}, "write_mode merge needs a key"),
        ({"write_mode": "delete_insert"}, "delete_insert and delete_where go together"),
        ({"delete_where": "true"}, "delete_insert and delete_where go together"),
        ({"write_mode": "delete_insert", "delete_where": " "}, "delete_where is empty"),
        ({"write_mode": "overwrite_partitions"}, "overwrite_partitions needs partition_by"),
        ({"key": ["idd"]}, "key names 'idd', which is not a column. Did you mean 'id'?"),
        ({"key": "id"}, "key is a list, such as ['id']"),
        ({"sort_by": ["whoo"]}, "sort_by names 'whoo', which is not a column. Did you mean 'who'?"),
        ({"sort_by": ["id descending"]}, "sort_by names 'id descending', which is not a column"),
        ({"sort_by": [""]}, "sort_by names '', which is not a column"),
        ({"sort_by": ["tags"]}, "does not work on a column of type list<string>"),
        ({"partition_by": ["wo"]}, "partition_by names 'wo', which is not a column. Did you mean 'who'?"),
        ({"partition_by": "day(at)"}, "partition_by is a list, such as ['day(at)']"),
        ({"partition_by": ["day(att)"]}, "partition_by names 'att'"),
        ({"partition_by": ["week(at)"]}, "use one of year, month, day, hour, bucket, truncate"),
        ({"partition_by": ["bucket(id)"]}, "such as day(ts) or bucket(16, id)"),
        ({"partition_by": ["bucket(0, id)"]}, "such as day(ts) or bucket(16, id)"),
        ({"partition_by": ["bucket(16)"]}, "such as day(ts) or bucket(16, id)"),
        ({"partition_by": ["bucket(16, id, who)"]}, "such as day(ts) or bucket(16, id)"),
        ({"partition_by": ["day(at, 4)"]}, "such as day(ts) or bucket(16, id)"),
        ({"partition_by": ["day(at, who)"]}, "such as day(ts) or bucket(16, id)"),
        ({"partition_by": ["day()"]}, "partition_by names ''"),
        ({"partition_by": ["day(at"]}, "is not a column or a transform such as day(ts)"),
        ({"partition_by": ["day(who)"]}, "does not work on a column of type string"),
        ({"partition_by": ["hour(day)"]}, "does not work on a column of type date"),
        ({"partition_by": ["tags"]}, "does not work on a column of type list<string>"),
        ({"partition_by": ["day(at)", "day(at)"]}, "needs the name 'at_day', which is taken already"),
        ({"schema": SCHEMA | {"at_day": "int"}, "partition_by": ["day(at)"]}, "'at_day', which is taken already"),
        (
            {"checks": [not_null("whom")]},
            "check not_null_whom names 'whom', which is not a column. Did you mean 'who'?",
        ),
        ({"checks": [in_range("id", 1), in_range("id", high=9)]}, "two checks are named 'range_id'"),
    ],
)
def test_a_bad_declaration_names_the_table_and_the_mistake(options: dict[str, Any], said: str):
    with pytest.raises(SpecError, match=r"^shop\.orders[.:]") as error:
        TableSpec(**({"name": "shop.orders", "schema": SCHEMA} | options))
    assert said in str(error.value)
    assert str(error.value).endswith((".", "?"))


@pytest.mark.parametrize("name", ["", "a'b", 'a"b', "..", "a/b", "a..b", "a.b."])
def test_a_bad_name_is_refused(name: str):
    with pytest.raises(InputError, match="is not a table name"):
        TableSpec(name, SCHEMA)


@pytest.mark.parametrize(
    "options",
    [
        {"expire_after": timedelta(days=-1)}, {"keep_snapshots": 0}, {"target_file_mb": 0}, {"metadata_versions": -1},
    ],
)  # fmt: skip
def test_a_policy_that_would_keep_nothing_is_refused(options: dict[str, Any]):
    with pytest.raises(SpecError, match="at least"):
        MaintenancePolicy(**options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("who", "who:identity"), ("big name", "big name:identity"), ("day(at)", "at_day:day"), ("hour(at)", "at_hour:hour"),
        ("month(day)", "day_month:month"), ("year( at )", "at_year:year"), ("bucket(16, id)", "id_bucket:bucket[16]"),
        ("bucket(id, 16)", "id_bucket:bucket[16]"), ("truncate(4, big name)", "big name_trunc:truncate[4]"),
    ],
)  # fmt: skip
def test_every_partition_transform_is_understood(text: str, expected: str):
    spec = TableSpec("t", SCHEMA, partition_by=[text])
    assert [f"{part.name}:{part.transform}" for part in spec.partition_spec.fields] == [expected]


def test_sort_orders_have_a_direction_and_nulls_at_the_matching_end():
    spec = TableSpec("t", SCHEMA, sort_by=["id", "at DESC", " big name  desc "])
    said = [f"{field.source_id} {field.direction} {field.null_order}" for field in spec.sort_order.fields]
    assert said == ["1 ASC NULLS FIRST", "2 DESC NULLS LAST", "5 DESC NULLS LAST"]


def test_a_required_key_is_the_tables_identifier():
    required = {"id": Column("long", required=True), "x": "int"}
    assert TableSpec("t", required, key=["id"]).iceberg_schema.identifier_field_names() == {"id"}
    assert TableSpec("t", required, key=["id", "x"]).iceberg_schema.identifier_field_names() == set()


def test_the_policy_and_own_properties_become_table_properties():
    policy = MaintenancePolicy(timedelta(days=2), 5, 64, 7)
    properties = TableSpec("t", SCHEMA, maintenance=policy, properties={"owner": "me"}).table_properties()
    assert properties["history.expire.max-snapshot-age-ms"] == str(2 * 86_400_000)
    assert properties["history.expire.min-snapshots-to-keep"] == "5"
    assert properties["write.target-file-size-bytes"] == str(64 * 1024 * 1024)
    assert (properties["format-version"], properties["owner"]) == ("2", "me")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"health_mark": 101}, "health_mark is a health from 0 to 100, not 101"),
        ({"health_mark": -1}, "health_mark is a health from 0 to 100"),
        ({"min_input_files": 1}, "min_input_files is at least 2"),
        ({"row_ttl": timedelta(days=9)}, "row_ttl and row_ttl_column go together"),
        ({"row_ttl_column": "at"}, "row_ttl and row_ttl_column go together"),
        ({"row_ttl_column": "at", "row_ttl": timedelta(0)}, "row_ttl is a time greater than zero"),
        ({"ref_retention": timedelta(days=-1)}, "ref_retention is a time greater than zero"),
        ({"compaction": "z-order"}, "'z-order' is not one of binpack, sort, zorder. Did you mean 'zorder'?"),
        ({"compaction_columns": "id"}, "compaction_columns is a list, such as ['id']"),
        ({"compaction_columns": ["id"]}, "binpack does not sort"),
        ({"compaction": "zorder", "compaction_columns": ["id"]}, "zorder needs at least two compaction_columns"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(options: dict[str, Any], said: str):
    with pytest.raises(SpecError) as error:
        MaintenancePolicy(**options)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            MaintenancePolicy(row_ttl_column="att", row_ttl=timedelta(1)),
            "row_ttl_column names 'att', which is not a column",
        ),
        (MaintenancePolicy(row_ttl_column="who", row_ttl=timedelta(1)), "'who' is string, not a date or a timestamp"),
        (MaintenancePolicy(compaction="sort"), "compaction sort needs compaction_columns, or the table's own sort_by"),
        (MaintenancePolicy(compaction="zorder", compaction_columns=["id", "whoo"]), "Did you mean 'who'?"),
    ],
)
def test_a_policy_that_does_not_fit_its_table_is_refused(policy: MaintenancePolicy, said: str):
    with pytest.raises(SpecError, match=r"^shop\.orders: ") as error:
        TableSpec("shop.orders", SCHEMA, maintenance=policy)
    assert said in str(error.value)


def test_a_policy_that_uses_all_its_options_is_taken():
    policy = MaintenancePolicy(
        row_ttl_column="day",
        row_ttl=timedelta(days=90),
        compaction="zorder",
        compaction_columns=["id", "who"],
        ref_retention=timedelta(days=7),
    )
    assert TableSpec("t", SCHEMA, maintenance=policy).maintenance == policy
    assert TableSpec("t", SCHEMA, sort_by=["id"], maintenance=MaintenancePolicy(compaction="sort"))


def test_the_policy_of_a_table_that_nobody_declared_comes_from_its_properties():
    policy = MaintenancePolicy(timedelta(days=2), 5, 64, 7)
    assert MaintenancePolicy.of_properties(policy.properties()) == policy
    assert MaintenancePolicy.of_properties({"owner": "me"}) == MaintenancePolicy()
    with pytest.raises(SpecError, match="is no number"):
        MaintenancePolicy.of_properties({"write.target-file-size-bytes": "big"})
