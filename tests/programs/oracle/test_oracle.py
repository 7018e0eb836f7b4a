"""The independence of the oracle from the product, and the examples of the specification."""

import ast
from decimal import Decimal
from pathlib import Path

import bson
import pytest

from tests.programs.oracle.exact_json import parse, write
from tests.programs.oracle.filters import Compare, IsNull, Like
from tests.programs.oracle.formats import Json
from tests.programs.oracle.keys import Key
from tests.programs.oracle.numbers import compare, total
from tests.programs.oracle.rules import Group, merged
from tests.programs.oracle.subscriber import Select
from tests.programs.oracle.text_formats import Xml
from tests.programs.oracle.topic import Input, Settings, SowTopic
from tests.programs.oracle.values import applied, difference, path_of, same

ID = Key((("id",),))


def test_the_oracle_shares_no_code_with_the_product():
    """No module of the oracle imports the product, or anything of the tests but the oracle."""
    modules = [path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_")]
    assert len(modules) > 10
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] not in ("processor", "spark_integration"), (module.name, name)
                assert not name.startswith("tests.") or name.startswith("tests.programs.oracle"), (module.name, name)


@pytest.mark.parametrize(
    ("record", "delta", "nulls", "depth", "expected"),
    [
        ({"packages": ["A", "B"]}, {"packages": ["C"]}, "ignore", None, {"packages": ["C"]}),
        ({"a": {"y": 2}}, {"a": 5}, "ignore", None, {"a": 5}),
        ({"a": 5}, {"a": {"x": 1}}, "ignore", None, {"a": {"x": 1}}),
        ({"a": {"x": 1}}, {"a": {}}, "ignore", None, {"a": {"x": 1}}),
        ({"a": 1}, {"a": None}, "ignore", None, {"a": 1}),
        ({"a": 1}, {"a": None}, "set", None, {"a": None}),
        ({"a": 1}, {"a": None}, "remove", None, {}),
        ({"a": {"x": 1}}, {"a": {"y": None}}, "ignore", 1, {"a": {"y": None}}),
        ({}, {"a": {"x": None, "y": 1}}, "ignore", None, {"a": {"y": 1}}),
    ],
)
def test_a_delta_is_merged_as_the_specification_says(record, delta, nulls, depth, expected):
    """Rules 2, 3, 4 and 6 of merge.md hold in their examples."""
    assert merged(record, delta, nulls, depth) == expected


def test_a_number_keeps_its_value_and_its_kind():
    """JSON's integers, doubles and longer decimals are three kinds, and each is written as it was read."""
    text = b'[1,1.0,18446744073709551616,0.1000000000000000000000001,-0.0,"\\u00e9\\ud83d\\ude00"]'
    value = parse(text)
    assert list(map(type, value)) == [int, float, int, Decimal, float, str]
    assert value[5] == "é😀"
    assert same(parse(write(value)), value)
    assert not same(1, 1.0)
    assert not same(1, True)
    assert same(float("nan"), float("nan"))


def test_sums_are_of_the_kind_of_the_field():
    """A sum of JSON numbers is exact, one of doubles the nearest double, and other kinds keep their kind."""
    assert same(total(0.1, 0.2, has_kinds=False), 0.3)
    assert same(total(0.1, 0.2, has_kinds=True), 0.3)
    assert same(total(1e16, 0.5, has_kinds=True), 1e16)
    assert same(total(1e16, 0.5, has_kinds=False), Decimal("10000000000000000.5"))
    assert same(total(bson.Int64(1), bson.Int64(2), has_kinds=True), bson.Int64(3))
    assert same(total("1.50", "2.25", has_kinds=False), "3.75")


def test_times_compare_as_instants():
    """Texts of different precision and zone have the order of their instants."""
    assert compare("2024-01-01T00:00:00Z", "2024-01-01T00:00:00.500Z") < 0
    assert compare("2024-01-01T10:00:00+02:00", "2024-01-01T09:00:00Z") < 0
    assert compare("2024-01-01T10:00:00+02:00", "2024-01-01T08:00:00.0Z") == 0
    assert compare("b", "a") > 0
    assert compare("10", "9") > 0


def test_a_difference_applied_to_the_old_record_gives_the_new_one():
    """Changed, added and removed members are found at any depth."""
    old = {"id": 7, "o": {"x": 1, "z": {"u": 1}}, "gone": 1}
    new = {"id": 7, "o": {"x": 2, "z": {}}, "new": [1]}
    changed, gone = difference(old, new)
    assert changed == {"o": {"x": 2}, "new": [1]}
    assert sorted(gone) == [("gone",), ("o", "z", "u")]
    assert same(applied(old, changed, gone), new)


def test_filters_follow_the_rules_for_null_arrays_and_texts():
    """The examples of filter.md, rules 1 to 5, 7 and 8."""
    assert Compare(("x",), "=", 2).matches({"x": "2.0"})
    assert not Compare(("x",), "=", "2.0").matches({"x": "2.000"})
    assert Compare(("x",), ">", 10).matches({"x": "abc"})
    assert not Compare(("x",), "!=", 1).matches({})
    assert Compare(("d",), "!=", "z").matches({"d": ["z", "y"]})
    assert IsNull(("x",)).matches({"x": ""})
    assert IsNull(("x",)).matches({"x": {"y": 1}})
    assert Like(("x",), "b").matches({"x": "abc"})


def test_the_most_specific_rule_of_a_select_list_wins():
    """Paths without a rule are included, the most specific rule decides, and key fields are always included."""
    select = Select({(): False, ("a",): True, ("a", "b"): False}, (("id",),))
    assert select.text == "-/,+/a,-/a/b"
    assert select.project({"id": 1, "a": {"b": 1, "c": 2}, "d": 3}) == {"id": 1, "a": {"c": 2}}


def test_an_array_of_one_and_an_empty_object_survive_xml():
    """The structure that plain XML leaves open is written with processing instructions and read back."""
    record = {"order": {"@id": "7", "log": ["a"], "o": {}, "px": "1 < 2"}}
    assert Xml().read(Xml().write(record)) == record


def test_a_late_publish_keeps_the_fields_of_its_group():
    """A full publish that is older than the record replaces everything but the group's fields."""
    group = Group(("ts",), (("px",), ("note",)))
    topic = SowTopic(Settings(Json(), ID, groups=(group,), default_command="publish"))
    for offset, body in enumerate([{"id": "7", "ts": 5, "px": 10}, {"id": "7", "ts": 2, "px": 9, "note": "n", "q": 1}]):
        topic.take(Input(b"7", write(body), {}, offset, 0), 0)
    assert topic.live[b"7"].record == {"id": "7", "ts": 5, "px": 10, "q": 1}
    topic.take(
        Input(b"7", write({"id": "7", "ts": 4}), {"remove": '["/px","/q"]', "command": "delta_publish"}, 2, 0), 0
    )
    assert topic.live[b"7"].record == {"id": "7", "ts": 5, "px": 10}


def test_a_full_publish_gets_its_key_field_from_the_kafka_key():
    """A text stays a text; it is a number where the record had one."""
    topic = SowTopic(Settings(Json(), ID))
    topic.take(Input(b"7", b'{"q":1}', {"command": "publish"}, 0, 0), 0)
    topic.take(Input(b"8", b'{"id":8}', {}, 1, 0), 0)
    topic.take(Input(b"8", b'{"q":1}', {"command": "publish"}, 2, 0), 0)
    assert topic.live[b"7"].record == {"id": "7", "q": 1}
    assert topic.live[b"8"].record == {"id": 8, "q": 1}


def test_a_key_in_another_spelling_is_forwarded_under_its_own_text():
    """The key of several fields is the compact JSON array of their texts."""
    topic = SowTopic(Settings(Json(), Key((("a",), ("b",)))))
    topic.take(Input(b'["1", "\\u0032"]', b'{"a":"1","b":"2"}', {}, 0, 0), 0)
    assert topic.live == {}
    assert [record.key for record in topic.rekeyed] == [b'["1","2"]']
    assert path_of("/a~1b/~0") == ("a/b", "~")
