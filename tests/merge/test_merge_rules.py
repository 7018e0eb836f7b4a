"""Merge rules by path combine the record's value with the delta's."""

from copy import deepcopy
from decimal import Decimal
from importlib.metadata import EntryPoint, EntryPoints
from time import thread_time

import pytest

from processor import entry_points
from processor.errors import ConfigurationError, RecordRejected, Stop
from processor.merge import MergePolicy, compile_rules, insert, merge
from processor.merge.rules import GROUP
from tests.merge.applying import change

VALUES = {
    "append": ([1], [2]),
    "first": (1, 2),
    "max": (1, 2),
    "min": (1, 2),
    "replace": (1, 2),
    "sum": (1, 2),
    "union": ([1], [2]),
}
"""Each built-in rule with a record's value and a delta's that it takes."""
BUILT_IN = [*VALUES]


def merged_value(name, old, new):
    """The value of a field with a rule after a delta; `...` as the old value stands for no record."""
    record, delta = (None if old is ... else {"o": {"v": old}}), {"o": {"v": deepcopy(new)}}
    change(compile_rules([], {"/o/v": name}), record, delta)
    merged = insert(delta, MergePolicy()) if record is None else merge(deepcopy(record), delta, MergePolicy())
    return merged.record["o"]["v"]


def test_the_rules_of_the_specification_are_installed():
    """The seven rules of the specification are installed as entry points; another one needs its values here."""
    assert set(BUILT_IN) == set(entry_points.installed_names(GROUP))


@pytest.mark.parametrize(
    ("name", "old", "new", "result"),
    [
        ("replace", 1, "x", "x"),
        ("sum", 0.1, 0.2, 0.3),
        ("sum", 5, -7, -2),
        ("sum", "0.10", "0.20", "0.30"),
        ("min", 2, 3, 2),
        ("min", 2, 1.5, 1.5),
        ("min", 2, 2.0, 2),
        ("min", "10", "9", "9"),
        ("max", 2, 3, 3),
        ("max", 2, 1, 2),
        ("max", 0.0, -0.0, 0.0),
        ("max", "2024-01-31", "2024-02-01", "2024-02-01"),
        ("append", [1], [1, 2], [1, 1, 2]),
        ("append", [1], 2, [1, 2]),
        ("append", 1, [2], [1, 2]),
        ("append", [1], {"a": 1}, [1, {"a": 1}]),
        ("append", [1], [], [1]),
        ("union", [1, 1], [1, 2, 2], [1, 1, 2]),
        ("union", [1, 0.0], [1.0, True, "1", -0.0], [1, 0.0, 1.0, True, "1", -0.0]),
        ("union", [{"a": 1, "b": [2]}], [{"b": [2], "a": 1}, {"b": [2.0]}], [{"a": 1, "b": [2]}, {"b": [2.0]}]),
        ("union", [Decimal("1.0")], [Decimal("1.00"), Decimal("1.0")], [Decimal("1.0"), Decimal("1.00")]),
        ("union", ["a"], "b", ["a", "b"]),
        ("union", "a", ["b"], ["a", "b"]),
        ("union", "a", ["a"], "a"),
        ("first", 1, 2, 1),
        ("first", {"a": 1}, {"b": 2}, {"a": 1}),
        ("first", [1], 2, [1]),
    ],
)  # fmt: skip
def test_a_rule_computes_the_new_value_from_both(name, old, new, result):
    """A rule computes the new value from the record's value and the delta's, compared strictly."""
    assert repr(merged_value(name, old, new)) == repr(result)


@pytest.mark.parametrize(
    ("name", "new", "result"),
    [
        *((name, 2.5, 2.5) for name in ("replace", "sum", "min", "max", "first")),
        ("append", [1, 1], [1, 1]),
        ("append", 1, [1]),
        ("union", [1, 1, 1.0], [1, 1.0]),
        ("union", "a", ["a"]),
    ],
)
@pytest.mark.parametrize("old", [..., None], ids=["no record", "null"])
def test_without_an_old_value_the_deltas_value_is_kept(name, old, new, result):
    """Without an old value the delta's value is kept; `append` and `union` begin an array."""
    assert repr(merged_value(name, old, new)) == repr(result)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_null_is_left_to_the_null_policy(name):
    """A null in a delta is handled by the null policy and never reaches a rule."""
    for policy, after in ((MergePolicy(), {"v": [1]}), (MergePolicy("set"), {"v": None}), (MergePolicy("remove"), {})):
        delta = {"v": None}
        change(compile_rules([], {"/v": name}, policy=policy), {"v": [1]}, delta)
        assert merge({"v": [1]}, delta, policy).record == after


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_delta_that_does_not_name_the_field_is_left_alone(name):
    """A delta without the field of a rule, or with another value in place of its object, is not changed."""
    for delta in ({"x": 1}, {"o": {"x": 1}}, {"o": 5}, {"o": None}, {}):
        before = deepcopy(delta)
        assert change(compile_rules([], {"/o/v": name}), {"o": {"v": 1}}, delta) == 0
        assert delta == before


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_rule_changes_the_delta_only(name):
    """A rule changes the delta and never the record, so that the merge finds the change."""
    old, new = VALUES[name]
    record = {"v": deepcopy(old)}
    change(compile_rules([], {"/v": name}), record, {"v": deepcopy(new)})
    assert record == {"v": old}


@pytest.mark.parametrize(
    ("name", "old", "new", "detail"),
    [
        ("sum", 1, "x", "/o/v, merge rule sum: 'x' is not a number"),
        ("sum", 1, True, "True is not a number"),
        ("sum", [1], 1, "[1] is not a number"),
        ("sum", ..., "x", "/o/v, merge rule sum: 'x' is not a number"),
        ("min", 1, "x", "/o/v, merge rule min: 'x' and 1 have no order"),
        ("max", 1, {}, "{} and 1 have no order"),
        ("max", ..., [1], "/o/v, merge rule max: [1] and [1] have no order"),
    ],
)
def test_a_value_the_rule_is_not_for_rejects_the_delta(name, old, new, detail):
    """A value of the wrong kind for a rule is rejected as `schema_mismatch` with path, rule and value.

    This holds for a new record too, which the value would otherwise enter.
    """
    with pytest.raises(RecordRejected) as caught:
        merged_value(name, old, new)
    assert caught.value.reason == "schema_mismatch"
    assert detail in caught.value.detail


def test_union_is_not_quadratic():
    """The time of `union` grows linearly: two arrays of 50,000 elements are united within seconds."""
    started = thread_time()
    assert len(merged_value("union", list(range(50_000)), list(range(25_000, 75_000)))) == 75_000
    assert thread_time() - started < 5


@pytest.mark.parametrize(
    ("groups", "rules", "settings", "detail"),
    [
        ([], {"v": "sum"}, {}, "merge rule sum at v: 'v' is not a JSON Pointer"),
        ([], {"": "sum"}, {}, "is the whole record"),
        ([], {"/v": "smu"}, {}, "there is no merge rule 'smu'; did you mean 'sum'?"),
        ([], {"/id": "max"}, {"key_fields": ["/id"]}, "/id and the key field /id overlap"),
        ([], {"/o": "first"}, {"key_fields": ["/o/id"]}, "/o and the key field /o/id overlap"),
        ([], {"/o": "first", "/o/v": "sum"}, {}, "merge rule sum at /o/v: /o has a rule too"),
        ([], {"/o/v": "sum", "/o": "first"}, {}, "merge rule first at /o: /o/v has a rule too"),
        ([], {"/o/v": "sum"}, {"policy": MergePolicy("set", 1)}, "/o/v is below merge_depth 1"),
        ([("/ts", ["/v"])], {"/ts": "max"}, {}, "merge rule max at /ts: a sequence group goes by /ts"),
        ([("/q/ts", ["/q"])], {"/q": "first"}, {}, "a sequence group goes by /q/ts"),
        ([("/ts", ["/q/v"])], {"/q": "append"}, {}, "/q/v inside it is in a sequence group"),
    ],
    ids=str,
)
def test_invalid_rules_are_a_configuration_error(groups, rules, settings, detail):
    """Invalid or overlapping rules are a configuration error at the start, with a suggestion for an unknown name."""
    with pytest.raises(ConfigurationError) as caught:
        compile_rules(groups, rules, **settings)
    assert detail in str(caught.value)


def test_a_group_decides_before_a_rule():
    """A sequence group is applied before a rule: a late delta adds nothing to a sum inside the group."""
    rules = compile_rules([("/ts", ["/n", "/q"])], {"/n": "sum", "/q/v": "max"})
    record = {"ts": 5, "n": 1, "q": {"v": 7}}
    late, timely = {"ts": 4, "n": 1, "q": {"v": 9}}, {"ts": 5, "n": 1, "q": {"v": 6}}
    assert (change(rules, record, late), late) == (1, {})
    assert (change(rules, record, timely), timely) == (0, {"ts": 5, "n": 2, "q": {}})


def longest(old, new):
    """Return the longer value; an example plug-in."""
    return max(old, new, key=len)


def grow(old, new):
    """Add the new value to the old one in place; an example plug-in."""
    old[new] = new
    return old


def fail(old, new):
    """Raise an unexpected error; an example plug-in."""
    raise ZeroDivisionError("by zero")


def refuse(old, new):
    """Reject the record; an example plug-in."""
    raise RecordRejected("schema_mismatch", "not today")


CONSTANT = {"a": 1, "n": None}


def constant(old, new):
    """Return the same object each time; an example plug-in."""
    return CONSTANT


def halt(old, new):
    """Raise Stop; an example plug-in."""
    raise Stop("the price list does not answer")


NO_FUNCTION = 5


@pytest.fixture
def plug_in(monkeypatch):
    """The functions of this file, installed as plug-ins under their names."""

    def installed(group, path):
        assert group == "sowstream.merge_rules"
        names = ("longest", "fail", "refuse", "constant", "grow", "halt", "NO_FUNCTION", "gone")
        return EntryPoints(
            EntryPoint(one, f"{'no.such.module' if one == 'gone' else __name__}:{one}", group) for one in names
        )

    monkeypatch.setattr(entry_points, "_points", installed)


def test_a_plug_in_is_a_rule(plug_in):
    """A plug-in is called where both sides have a value, and not for the first value of a field."""
    assert merged_value("longest", "aaa", "bb") == "aaa"
    assert merged_value("longest", "a", "bb") == "bb"
    assert merged_value("longest", ..., 5) == 5


def test_a_plug_in_that_fails_rejects_the_delta(plug_in):
    """A plug-in that fails rejects the delta as `plugin_failed` with its name, path and error.

    A rejection that it raises itself is kept, with rule and path added.
    """
    with pytest.raises(
        RecordRejected, match="plugin_failed: merge rule fail at /o/v: ZeroDivisionError: by zero"
    ) as caught:
        merged_value("fail", 1, 2)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(RecordRejected, match="schema_mismatch: /o/v, merge rule refuse: not today"):
        merged_value("refuse", 1, 2)


def test_a_plug_in_that_raises_stop_stops_the_worker(plug_in):
    """A plug-in that raises Stop stops the worker; the record is not rejected."""
    with pytest.raises(Stop, match="the price list does not answer"):
        merged_value("halt", 1, 2)


def test_a_plug_in_that_changes_the_old_value_changes_a_copy(plug_in):
    """A plug-in that changes the old value in place changes a copy, so that the change appears in the delta."""
    record, delta = {"v": {"a": "a"}}, {"v": "b"}
    change(compile_rules([], {"/v": "grow"}), record, delta)
    assert record == {"v": {"a": "a"}}
    assert merge(record, delta, MergePolicy()).delta == {"v": {"b": "b"}}


def test_a_value_that_a_plug_in_returns_is_copied(plug_in):
    """The merge copies the value that a plug-in returns, so dropped nulls are still in the plug-in's own object."""
    assert merged_value("constant", 5, 1) == {"a": 1}
    assert CONSTANT == {"a": 1, "n": None}


@pytest.mark.parametrize(("name", "detail"), [("gone", "cannot be loaded"), ("NO_FUNCTION", "is no function")])
def test_a_plug_in_that_cannot_be_used_is_a_configuration_error(plug_in, name, detail):
    """A plug-in that cannot be loaded or is no function is a configuration error with its name."""
    with pytest.raises(ConfigurationError, match=f"merge rule '{name}': .*{detail}"):
        compile_rules([], {"/v": name})
