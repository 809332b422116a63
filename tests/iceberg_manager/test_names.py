"""A table's name is safe wherever it is used: in a path, in SQL, in a sentence."""

import pytest

from iceberg_manager.errors import InputError
from iceberg_manager.names import TableName, did_you_mean


def test_a_bare_name_is_in_the_default_namespace():
    name = TableName.parse("orders")
    assert (name.namespace, name.table, str(name)) == (("default",), "orders", "default.orders")
    assert TableName.parse(name) is name


def test_a_name_is_spelled_for_each_engine():
    name = TableName.parse("a.b.big orders")
    assert name.identifier == ("a", "b", "big orders")
    assert name.quoted("lake") == "`lake`.`a`.`b`.`big orders`"
    assert name.quoted(quote='"') == '"a"."b"."big orders"'


def test_no_table_lies_in_the_folder_of_another():
    paths = [TableName.parse(text).path for text in ("a.b", "a.b.c", "a.b.c.d")]
    assert not any(other.startswith(path + "/") for path in paths for other in paths)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "a..b",
        ".a",
        "a.",
        "../a",
        "a/b",
        "a\\b",
        "a'b",
        'a"b',
        "a`b",
        "a;b",
        "-a",
        " a",
        "a ",
        "a\n",
        "ü",
    ],
)
def test_a_name_that_could_escape_is_refused(text: str):
    with pytest.raises(InputError, match="is not a table name"):
        TableName.parse(text)


def test_the_nearest_name_is_offered_and_a_far_one_is_not():
    assert did_you_mean("ordrs", ["orders", "users"]) == " Did you mean 'orders'?"
    assert did_you_mean("zzz", ["orders", "users"]) == ""
