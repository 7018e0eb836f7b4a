"""Expressions in `preprocess` and `enrich`: computed fields without a package, through the merge itself."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from processor.config import TopicConfig
from processor.errors import ConfigurationError
from tests.builtin.merging import bodies, merging, rejected


def last(driver, role: str = "sow"):
    """The last record of an output."""
    return bodies(driver.pending_output(role))[-1]


class TestEnrich:
    """Enrichment sees the record as the message would leave it, and the stored record."""

    def test_a_delta_is_completed_by_the_stored_record(self):
        """A path that a delta lacks is the stored record's; the computed field is in SOW and in the delta."""
        driver = merging(enrich={"/total": "/qty * /px"})
        driver.pipe_batch([("7", {"id": 7, "px": 3, "qty": 2}, None), ("7", {"qty": 5}, None)])
        assert bodies(driver.pending_output("sow")) == [
            {"id": 7, "px": 3, "qty": 2, "total": 6},
            {"id": 7, "px": 3, "qty": 5, "total": 15},
        ]
        assert last(driver, "delta") == {"id": 7, "qty": 5, "total": 15}

    def test_a_full_record_is_not_completed(self):
        """A full publish replaces the record, so its expressions see nothing of the former one."""
        driver = merging(enrich={"/total": "/qty * /px"})
        driver.pipe_input("7", {"id": 7, "px": 3, "qty": 2})
        driver.pipe_input("7", {"id": 7, "qty": 5}, {"command": "publish"})
        assert last(driver)["qty"] == 5
        assert last(driver).get("total") is None

    def test_previous_is_the_stored_record(self):
        """PREVIOUS is the value before the message, of a new key NULL, of a full publish too."""
        driver = merging(enrich={"/was": "PREVIOUS(/px)", "/rise": "/px - PREVIOUS(/px)"}, null_policy="set")
        driver.pipe_input("7", {"id": 7, "px": 3})
        assert last(driver) == {"id": 7, "px": 3, "was": None, "rise": None}
        driver.pipe_input("7", {"px": 5})
        assert last(driver) == {"id": 7, "px": 5, "was": 3, "rise": 2}
        driver.pipe_input("7", {"id": 7, "px": 9}, {"command": "publish"})
        assert last(driver) == {"id": 7, "px": 9, "was": 5, "rise": 4}

    def test_missing_leaves_the_field_out(self):
        """With MISSING, a delta leaves the stored field as it is, and a full record does not have it."""
        driver = merging(enrich={"/note": "IF(/x > 1, /note, MISSING)"})
        driver.pipe_input("7", {"id": 7, "x": 2, "note": "a"})
        driver.pipe_input("7", {"x": 1, "note": "b"})
        assert last(driver) == {"id": 7, "x": 1, "note": "a"}
        driver.pipe_input("7", {"id": 7, "x": 0, "note": "c"}, {"command": "publish"})
        assert last(driver) == {"id": 7, "x": 0}

    def test_all_expressions_of_a_step_see_the_message_before_it(self):
        """Two fields can be exchanged; a second step sees the first one's results."""
        driver = merging(enrich=[{"/a": "/b", "/b": "/a"}, {"/sum": "/a * 10 + /b"}])
        driver.pipe_input("7", {"id": 7, "a": 1, "b": 2})
        assert last(driver) == {"id": 7, "a": 2, "b": 1, "sum": 21}

    def test_steps_and_plug_ins_are_mixed(self):
        """Expressions stand next to a plug-in of that name, in the order of the settings."""
        named = {"use": "expressions", "settings": {"fields": {"/b": "/a + 1"}}}
        driver = merging(enrich=[{"/a": "/n + 1"}, named])
        driver.pipe_input("7", {"id": 7, "n": 1})
        assert last(driver) == {"id": 7, "n": 1, "a": 2, "b": 3}

    def test_a_copied_object_is_a_copy(self):
        """An object that is copied to another field does not change with the first one."""
        driver = merging(enrich={"/seen": "PREVIOUS(/deep)"})
        driver.pipe_input("7", {"id": 7, "deep": {"n": 1}})
        driver.pipe_input("7", {"deep": {"n": 2}})
        assert last(driver) == {"id": 7, "deep": {"n": 2}, "seen": {"n": 1}}

    def test_a_field_below_a_value_rejects_the_record(self):
        """A computed field cannot be put into a number; the record is rejected with the path."""
        driver = merging(enrich={"/a/b": "1"})
        driver.pipe_input("7", {"id": 7, "a": 5})
        [(reason, detail)] = rejected(driver)
        assert (reason, "/a/b leads through a value" in detail) == ("plugin_failed", True)

    def test_a_computed_key_is_refused(self):
        """An expression that changes the key field has the record rejected, as any enricher."""
        driver = merging(enrich={"/id": "/id + 1"})
        driver.pipe_input("7", {"id": 7})
        assert rejected(driver)[0][0] == "key_mismatch"

    @pytest.mark.parametrize(("policy", "total"), [("ignore", 6), ("set", None)])
    def test_a_null_of_a_delta_follows_the_null_policy(self, policy, total):
        """A null that the merge ignores leaves the stored value to the expression."""
        driver = merging(enrich={"/total": "/qty * /px"}, null_policy=policy)
        driver.pipe_input("7", {"id": 7, "px": 3, "qty": 2})
        driver.pipe_input("7", {"qty": None})
        assert last(driver)["total"] == total


_NUMBER = st.integers(-9, 9)
_INNER = st.dictionaries(st.sampled_from("xyz"), _NUMBER | st.none(), max_size=3)
_MESSAGE = st.dictionaries(st.sampled_from("ab"), _NUMBER | st.none() | _INNER, max_size=2)


@given(
    st.lists(_MESSAGE, min_size=1, max_size=5), st.sampled_from(["ignore", "set", "remove"]), st.sampled_from([None, 1])
)
@example([{"a": {"x": 1, "y": 2}}, {"a": {"x": 5}}], "ignore", None)
@example([{"a": {"x": 1, "y": 2}}, {"a": {"x": 5}}], "ignore", 1)
@example([{"a": 3}, {"a": None}], "remove", None)
def test_a_path_is_the_field_of_the_merged_record(messages, policy, depth):
    """For any deltas, a copied path has the value that the same delta leaves in the record itself."""
    driver = merging(enrich={"/copied": "/a/x", "/whole": "/a"}, null_policy=policy, merge_depth=depth)
    for message in messages:
        driver.pipe_input("7", {"id": 7, **message})
        record = last(driver)
        value = record.get("a")
        inner = value.get("x") if isinstance(value, dict) else None
        if policy == "set":
            assert record["copied"] == inner
            assert record["whole"] == value
        elif inner is not None:
            assert record["copied"] == inner


class TestPreprocess:
    """Preprocessing sees the message alone, before its key is made."""

    def test_the_key_is_made_of_computed_fields(self):
        """A field that the key needs may be computed."""
        driver = merging(preprocess={"/id": "CONCAT(/desk, '-', /number)"})
        driver.pipe_input("a-7", {"desk": "a", "number": 7})
        assert last(driver) == {"desk": "a", "number": 7, "id": "a-7"}

    def test_there_is_no_previous_record(self):
        """PREVIOUS in `preprocess` is refused with the place and the reason."""
        with pytest.raises(ConfigurationError, match="PREVIOUS is for `enrich`"):
            merging(preprocess={"/was": "PREVIOUS(/px)"})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"/a": "/b +"}, "/a: filter, line 1, column 5"),
        ({"/a": "NOWHERE(/b)"}, "there is no function 'NOWHERE'"),
        ({"/a": "MISSING + 1"}, "MISSING is no value"),
        ({"/a": "PREVIOUS(/a, /b)"}, "PREVIOUS takes 1 argument"),
        ({"/a": "SOW_KEY()"}, "SOW_KEY is for filters"),
        ({"/a": 5}, "5 is no expression"),
        ({"/a[0]": "1"}, "'/a[0]' is no path of a field"),
    ],
)
def test_a_wrong_expression_is_refused_before_anything_starts(fields, problem):
    """The message has the field, the place in the expression and the reason."""
    with pytest.raises(ConfigurationError) as caught:
        merging(enrich={"/good": "1", **fields})
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "fields"),
    [
        ({"/qty": "sum"}, {"/qty": "COALESCE(/qty, 0)"}),
        ({"/tags": "append"}, {"/tags": "/tags"}),
        ({"/tags": "append"}, {"/first": "1", "/tags": "IF(/x = 1, /tags[0], MISSING)"}),
        ({"/legs": "append"}, {"/legs/px": "/legs/qty * 2"}),
        ({"/legs/qty": "sum"}, {"/legs": "/legs"}),
    ],
)
def test_a_rule_that_counts_does_not_count_its_own_result(rules, fields):
    """An expression sees the record after the merge rules, so a field of `sum` that it copies would grow for ever."""
    with pytest.raises(ConfigurationError, match="would count the stored value again"):
        merging(merge_rules=rules, enrich=fields)


@pytest.mark.parametrize("rule", ["sum", "min", "max", "first", "replace"])
def test_a_field_with_a_rule_is_computed_once(rule):
    """A computed value meets its rule as a published one; its own field may be seen where that repeats nothing."""
    field = "/px" if rule == "sum" else "/qty"
    driver = merging(merge_rules={"/qty": rule}, enrich={"/qty": f"COALESCE({field}, 0)", "/was": "PREVIOUS(/qty)"})
    driver.pipe_batch([("7", body, None) for body in ({"id": 7, field[1:]: 5}, {"x": 1}, {"x": 2})])
    expected = {"sum": [5, 10, 15]}.get(rule, [5, 5, 5])
    assert [body["qty"] for body in bodies(driver.pending_output("sow"))] == expected


@pytest.mark.parametrize(("text", "result"), [("/sum / /n", "nan"), ("EXP(/sum)", "inf")])
def test_a_result_that_json_lacks_rejects_the_message_unless_it_is_null(text, result):
    """The dead letter names the computed field; NULL in its place is stored."""
    body = {"id": 7, "sum": 1000, "n": 0}
    driver = merging(enrich={"/avg": text})
    driver.pipe_input("7", body)
    [(reason, detail)] = rejected(driver)
    assert reason == "schema_mismatch"
    assert detail.startswith(f"/avg: {result} is not a JSON value")
    driver = merging(enrich={"/avg": f"IF(/n = 0, NULL, {text})"})
    driver.pipe_input("7", body)
    assert bodies(driver.pending_output("sow")) == [body]


def test_an_expression_sees_the_sum():
    """Expressions in `enrich` compute from the record that the merge rules make."""
    driver = merging(merge_rules={"/qty": "sum"}, enrich={"/total": "/qty * 2"})
    driver.pipe_batch([("7", body, None) for body in ({"id": 7, "qty": 10}, {"qty": 5}, {"x": 1})])
    assert [body["total"] for body in bodies(driver.pending_output("sow"))] == [20, 30, 30]


def test_filters_know_neither_missing_nor_previous():
    """The two words are for computed fields only."""
    from processor.filter import compile_filter

    for text in ("/a = MISSING", "PREVIOUS(/a) = 1"):
        with pytest.raises(ConfigurationError):
            compile_filter(text)


def test_the_settings_take_each_form():
    """A mapping of paths is a single step; a list has names, mappings and steps with settings."""
    steps = TopicConfig(enrich=["a", {"/x": "1"}, {"use": "b", "settings": {"c": 1}}]).enrich
    assert [(step.use, step.settings) for step in steps] == [
        ("a", {}),
        ("expressions", {"fields": {"/x": "1"}}),
        ("b", {"c": 1}),
    ]
    assert TopicConfig(preprocess={"/x": "1"}).preprocess[0].use == "expressions"
    assert TopicConfig(preprocess="upper").preprocess[0].use == "upper"
