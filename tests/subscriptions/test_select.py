"""A select list keeps the parts of a record that its rules include, leaf by leaf."""

import copy

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from processor.errors import ConfigurationError, FilterError
from processor.filter.limits import CHARACTERS_MAX, DEPTH_MAX
from processor.merge.key import KeyFields
from processor.subscriptions.request.select import Select

PROVED = settings(max_examples=200, deadline=None, print_blob=True)

NO_KEY = KeyFields(())
BY_ID = KeyFields(("/id",))
RECORD = {
    "id": 7,
    "a": {"b": 1, "c": {"d": 2, "e": 3}},
    "legs": [{"px": 5, "ccy": "EUR"}, 6, {"ccy": "USD"}, [{"px": 8}]],
    "n": None,
}


def selected(text, record=RECORD, key=BY_ID):
    """The part of a record that a list keeps."""
    return Select(text, key).project(record)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("-/,+/a/b", {"id": 7, "a": {"b": 1}}),
        ("-/", {"id": 7}),
        ("+/", RECORD),
        ("-/a,-/legs", {"id": 7, "n": None}),
        ("-/,+/n,+/missing", {"id": 7, "n": None}),
        ("-/,+/a,-/a/c", {"id": 7, "a": {"b": 1}}),
        ("-/,+/a,-/a/c,+/a/c/e", {"id": 7, "a": {"b": 1, "c": {"e": 3}}}),
        ("+/a/c/e,-/a/c,+/a,-/", {"id": 7, "a": {"b": 1, "c": {"e": 3}}}),
        ("-/id,-/a,-/n", {"id": 7, "legs": RECORD["legs"]}),
        (" - / , + /'a'/b ", {"id": 7, "a": {"b": 1}}),
    ],
)
def test_the_most_specific_rule_wins(text, left):
    """The most specific rule decides in any order of rules; paths without a rule, and the key, are included."""
    assert selected(text) == left


def test_an_excluded_object_is_kept_with_an_included_member():
    """An excluded object is kept if a member in it is, and an included one is kept even if it is empty.

    A value that is no object has no members to select.
    """
    assert selected("-/a,+/a/x", {"a": {"b": 1}}) == {}
    assert selected("-/a,+/a/x", {"a": {"x": {}}}) == {"a": {"x": {}}}
    assert selected("-/a/b", {"a": {"b": 1}}) == {"a": {}}
    assert selected("-/a,+/a/b,-/a/b/c", {"a": {"b": {"c": 1}, "d": 2}}) == {"a": {"b": {}}}
    assert selected("-/a,+/a/b", {"a": 5}) == {}
    assert selected("-/a/b", {"a": 5}) == {"a": 5}


def test_objects_in_arrays_are_projected():
    """Each object in an array is projected, also in nested arrays; other elements of an excluded array are dropped."""
    legs = RECORD["legs"]
    assert selected("-/legs/ccy", {"legs": legs}) == {"legs": [{"px": 5}, 6, {}, [{"px": 8}]]}
    assert selected("-/,+/legs/px", {"legs": legs}) == {"legs": [{"px": 5}, [{"px": 8}]]}
    assert selected("-/legs,+/legs/ccy", {"legs": legs}) == {"legs": [{"ccy": "EUR"}, {"ccy": "USD"}]}
    assert selected("-/,+/legs/x", {"legs": legs}) == {}
    assert selected("-/,+/legs", {"legs": []}) == {"legs": []}


@pytest.mark.parametrize(
    ("pointers", "record", "left"),
    [
        (("/id",), RECORD, {"id": 7}),
        (("/a/c/d", "/id"), RECORD, {"id": 7, "a": {"c": {"d": 2}}}),
        (("/x~1y", "/m~0n"), {"x/y": 1, "m~n": 2, "z": 3}, {"x/y": 1, "m~n": 2}),
        ((), RECORD, {}),
    ],
)
def test_key_fields_are_always_sent(pointers, record, left):
    """Key fields are always sent, also nested ones, under any list; an explicit key has no fields."""
    key = KeyFields(pointers)
    assert selected("-/", record, key) == left
    assert selected("-/,-/id,-/a/c,-/a/c/d", record, key) == left
    assert selected("-/,-/id/x", record, key) == left


def test_quoted_names():
    """Names that are no words are quoted as in filters; commas and brackets in quotes have no special meaning."""
    record = {"a b": {"x": 1, "y": 2}, "c,d": 3, "it's": 4, "e]": 5}
    assert selected("-/,+/'a b'/x", record) == {"a b": {"x": 1}}
    assert selected("-/'c,d',-/\"it's\",-/'a b'", record) == {"e]": 5}
    assert selected("-/'it''s',-/'e]',-/'a b',+/'c,d'", record) == {"c,d": 3}


@pytest.mark.parametrize("text", ["-/", "-/,+/a", "-/a", "-/,+/a/b", "-/a/b", "+/"])
def test_a_record_that_is_no_object_is_sent_unchanged(text):
    """A record that is no object, such as binary bytes, is sent unchanged."""
    for record in (b"\0\1", 5, "text", None, [{"a": 1}]):
        assert selected(text, record) is record


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "expected + or - and a path, such as +/id or -/; the list ends"),
        ("  ", 3, "expected + or - and a path, such as +/id or -/; the list ends"),
        ("-/,", 4, "expected + or - and a path, such as +/id or -/; the list ends"),
        ("-/,,+/a", 4, "expected + or - and a path, such as +/id or -/; found a comma"),
        ("-/, /a", 5, "expected + or - and a path, such as +/id or -/"),
        ("-/,+a", 5, "expected a path, such as /id, /a/b or /'a b'"),
        ("-/,+", 5, "expected a path, such as /id, /a/b or /'a b'"),
        ("-/a b", 4, "expected a comma or the end; a name with this in it is quoted"),
        ("-/a/", 4, "expected a comma or the end; a name with this in it is quoted"),
        ("-/a*", 4, "expected a comma or the end; a name with this in it is quoted"),
        ("-//a", 3, "expected a comma or the end; a name with this in it is quoted"),
        ("-/'a", 3, "expected a comma or the end; a name with this in it is quoted"),
        ("-/a -/b", 4, "expected a comma or the end; a name with this in it is quoted"),
        ("-/,+/legs[0]/px", 5, "[0]: an element of an array cannot be selected, only all of them"),
        ("-/a,+/b,+/'a'", 9, "/'a' is given twice"),
        ("-/,+/a,-/", 8, "/ is given twice"),
    ],
)
def test_a_bad_list_is_refused(text, column, problem):
    """A bad list is refused with its problem, its place and a caret."""
    with pytest.raises(ConfigurationError) as error:
        Select(text, BY_ID)
    assert str(error.value) == f"select, line 1, column {column}: {problem}\n  {text}\n  {' ' * (column - 1)}^"


def test_the_size_of_a_list_is_limited():
    """The length of a list and the depth of its paths are limited, since any client may send one."""
    deepest = "-" + "/a" * DEPTH_MAX
    record = leaf = {}
    for _ in range(DEPTH_MAX - 1):
        leaf["a"] = {}
        leaf = leaf["a"]
    before = copy.deepcopy(record)
    leaf["a"] = 1
    assert selected(deepest, record) == before
    with pytest.raises(FilterError, match=f"the path has {DEPTH_MAX + 1} steps"):
        Select(deepest + "/a", BY_ID)
    with pytest.raises(FilterError, match=f"a select list at most {CHARACTERS_MAX}"):
        Select("-/" + "a" * CHARACTERS_MAX, BY_ID)


NAMES = st.sampled_from(["id", "a", "b", "c"])
VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.just(""),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
RECORDS = st.dictionaries(NAMES, VALUES, max_size=4)
RULES = st.dictionaries(st.lists(NAMES, max_size=3).map(tuple), st.booleans(), min_size=1, max_size=6)
AT_TOP = st.dictionaries(st.lists(NAMES, max_size=1).map(tuple), st.booleans(), min_size=1, max_size=4)
KEYS = st.sampled_from([(), (("id",),), (("a", "b"),), (("id",), ("a", "b"))])

GONE = object()


def naive(value, path, rules):
    """The selected part of a value, by applying the longest rule for each place in it."""
    included = rules[max((rule for rule in rules if path[: len(rule)] == rule), key=len)]
    if isinstance(value, dict):
        left = {name: naive(member, (*path, name), rules) for name, member in value.items()}
        left = {name: member for name, member in left.items() if member is not GONE}
        return left if included or left else GONE
    if isinstance(value, list):
        left = [element for element in (naive(element, path, rules) for element in value) if element is not GONE]
        return left if included or left else GONE
    return value if included else GONE


@PROVED
@given(RULES | AT_TOP, RECORDS, KEYS)
@example({("a",): False, ("a", "b"): True}, {"a": [{"b": 1}, [{"c": 2}], 3]}, ())
def test_a_record_is_projected_by_the_rules_of_each_leaf(rules, record, key):
    """Random lists project random records as the rules for each leaf require, and leave the record itself unchanged."""
    text = ",".join("+-"[not included] + "/" + "/".join(path) for path, included in rules.items())
    select = Select(text, KeyFields(tuple("/" + "/".join(path) for path in key)))
    expected = {(): True, **rules}
    for path in key:  # A key field has no members, and any value of it is sent.
        expected = {rule: included for rule, included in expected.items() if rule[: len(path)] != path}
        expected[path] = True
    before = copy.deepcopy(record)
    result = select.project(record)
    left = naive(record, (), expected)
    assert result == ({} if left is GONE else left)
    assert record == before
    assert result is not record
