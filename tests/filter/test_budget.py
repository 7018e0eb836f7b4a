"""No filter and no record takes more work than the budget of an evaluation, which is counted in steps.

Expressions in the settings that are over it are refused by `sowstream check`.
"""

import contextlib
import random
import sys
import time
from decimal import Decimal
from functools import partial
from typing import Final

import pytest
import yaml

from processor.cli.main import run
from processor.codec import load_codec
from processor.errors import FilterError, SowstreamError
from processor.filter import RecordMetadata, compile_assignments, compile_expression, compile_filter, compile_work
from processor.filter.aggregate import compile_fields
from processor.filter.compare import number_key
from processor.filter.evaluation import over_budget
from processor.filter.limits import MADE_CHARACTERS_MAX, PATTERN_CHARACTERS_MAX, STEPS_MAX, TOKENS_MAX
from processor.merge import KeyFields
from processor.merge.builtin_rules import check_addend, exact_sum
from processor.subscriptions.request.record_order import SortOrder
from processor.subscriptions.request.select import Select
from processor.subscriptions.request.subscribe_options import parse_options
from processor.subscriptions.request.subscribed_topic import Topic
from processor.subscriptions.request.subscription_spec import GroupingSpec
from processor.values.key_text import is_respelled
from processor.values.kinds import compare

GROWING = "'yy'"
for _ in range(6):
    GROWING = f"REPLACE({GROWING}, 'y', '{'y' * 100}')"


class Calls:
    """Counts the calls of functions while it is in use: a measure of work that is the same on every machine."""

    def __enter__(self):
        self.count = 0
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, _frame, event, _argument):
        self.count += event in ("call", "c_call")


class Untouched(RecordMetadata):
    """Metadata whose budget must not be asked."""

    def spend(self, steps):
        """Fail."""
        raise AssertionError(steps)

    def make(self, characters):
        """Fail."""
        raise AssertionError(characters)


@pytest.mark.parametrize(
    "text",
    [
        f"LENGTH(UPPER(REVERSE({GROWING}))) < 0",
        "REPLACE(REPLACE(REPLACE(/a, 'a', /b), 'b', /c), 'c', /d) = 'x'",
        " AND ".join(["LN(/a) + EXP(/a) > 0"] * 120),
        "/a LIKE '.*[ab].{500}c'",
        "REGEXP_REPLACE(/a, 'x', '" + "\\0" * 30_000 + "') = 'x'",
        "CONCAT(" + ", ".join(["LN(2)"] * 200) + ") = 'x'",
    ],
)
def test_a_filter_that_is_over_its_budget_on_ordinary_records_is_refused(text):
    """A filter whose work on an ordinary record is over the budget is refused with the place and the reason."""
    with pytest.raises(FilterError, match=r"line 1, column \d+: up to here it(s functions make| takes)") as caught:
        compile_filter(text)
    assert str(caught.value).count("\n") == 2
    with pytest.raises(Exception, match=r"/x: .*up to here"):
        compile_assignments({"/x": text})
    with pytest.raises(Exception, match=r"/x: .*up to here"):
        compile_fields({"/x": text})


PATHS = ["/a", "/b", "/c/d", "/e", "/c[1]"]
UNARY = [
    "UPPER",
    "LOWER",
    "REVERSE",
    "TRIM",
    "LENGTH",
    "ARRAY_SUM",
    "ARRAY_MIN",
    "ARRAY_MAX",
    "ARRAY_COUNT",
    "ROUND",
    "ABS",
]


def hostile_value(rng, depth):
    """A value that makes texts, looks at arrays, or both."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([*PATHS, *PATHS, "'a'", "7", "'ab'"])
    inner = [hostile_value(rng, depth - 1) for _ in range(3)]
    kind = rng.randrange(9)
    if kind == 0:
        return f"CONCAT({', '.join(inner)})"
    if kind == 1:
        part = rng.choice(["'a'", "'b'", inner[1]])
        return f"REPLACE({inner[0]}, {part}, {inner[2]})"
    if kind == 2:
        pattern = rng.choice(["'a'", "'(a)(b)?'", "'.*b|a'", "''"])
        return f"REGEXP_REPLACE({inner[0]}, {pattern}, {rng.choice([inner[1], repr('<0>')])})"
    if kind == 3:
        return f"SUBSTR({inner[0]}, 2)"
    if kind == 4:
        return f"IF({hostile(rng, depth - 1)}, {inner[0]}, {inner[1]})"
    if kind == 5:
        return f"({inner[0]} {rng.choice('+-*%')} {inner[1]})"
    if kind == 6:
        return f"COALESCE({inner[0]}, {inner[1]})"
    return f"{rng.choice(UNARY)}({inner[0]})"


def hostile(rng, depth):
    """A condition over such values."""
    one, other, third = (hostile_value(rng, depth) for _ in range(3))
    kind = rng.randrange(7)
    if kind == 0:
        return f"({one} {rng.choice(['=', '!=', '<', '>='])} {other})"
    if kind == 1:
        return f"({one} IN ({other}, {third}, 'x'))"
    if kind == 2:
        return f"({one} BETWEEN {other} AND {third})"
    if kind == 3:
        pattern = rng.choice(["'zz'", "'a.*z'", "'(?i)ABC'", "'[ab]*a[ab]{14}c'", "'^x'"])
        return f"({one} LIKE {pattern})"
    if kind == 4:
        return f"({one} IS {rng.choice(['NULL', 'NAN'])})"
    if kind == 5:
        return f"(INSTR_I({one}, {other}) > 2 AND STREQUAL_I({other}, {third}))"
    return f"(NOT {one} BEGINS WITH ('x', 'y'))"


def hostile_record(rng):
    """A record of long texts, long arrays, arrays in arrays, and numbers of many digits."""

    def value():
        size = rng.choice([3, 300, 20_000])
        kind = rng.randrange(7)
        if kind == 0:
            return rng.choice(["ab", "é", "ß", "9", "\U0001f600"]) * size
        if kind == 1:
            return [rng.choice([1, "1", "x", 0.5, None])] * size
        if kind == 2:
            return [[1], ["2"]] * (size // 2)
        if kind == 3:
            return [{"d": "2024-01-01"}, {"d": [7]}] * (size // 2)
        if kind == 4:
            return Decimal("0." + "7" * size)
        if kind == 5:
            return [Decimal("9" * 50)] * (size // 4)
        return rng.randint(-9, 9)

    return {name: value() for name in "abce"}


def test_no_evaluation_calls_more_functions_than_its_budget_allows(random_seed):
    """Random costly filters over random large records keep to their budget, and those that would not are NULL."""
    rng = random.Random(random_seed)
    over = 0
    for _ in range(150):
        text = f" {rng.choice(['OR', 'AND'])} ".join(hostile(rng, 3) for _ in range(rng.choice([1, 4, 40])))
        try:
            selected = compile_filter(text)
        except FilterError:
            continue
        record, before = hostile_record(rng), over_budget.evaluations
        with Calls() as calls:
            matches = selected.matches(record)
        is_over = over_budget.evaluations != before
        assert calls.count <= 4 * STEPS_MAX, (calls.count, text[:200])
        assert not (is_over and matches)
        over += is_over
    assert over > 2


@pytest.mark.parametrize(
    "text", ["/a = 'x'", "NOT /a = 'x'", "/a = 'x' OR TRUE", "/a IS NULL", "/a NOT IN ('y', 'z')", "NOT /a"]
)
def test_an_evaluation_over_its_budget_is_null_whatever_surrounds_it(text):
    """An evaluation over its budget is NULL as a whole, so that neither a filter nor its negation matches."""
    record = {"a": ["x"] * (STEPS_MAX + 1)}
    before = over_budget.evaluations
    assert not compile_filter(text).matches(record)
    assert compile_expression(text).value(record) is None
    assert over_budget.evaluations == before + 2
    assert not compile_filter(text).matches({"a": "y" * 10}) or "NOT" in text or "TRUE" in text


def test_characters_are_counted_over_all_functions():
    """The characters that functions make are added up over a whole evaluation, and no further text is made."""
    record = {"a": "x" * (MADE_CHARACTERS_MAX // 2)}
    assert compile_expression("LENGTH(REVERSE(/a))").value(record) == MADE_CHARACTERS_MAX // 2
    assert compile_expression("LENGTH(REVERSE(LOWER(/a)))").value(record) == MADE_CHARACTERS_MAX // 2
    assert compile_expression("LENGTH(TRIM(REVERSE(LOWER(/a))))").value(record) is None
    assert compile_expression(r"LENGTH(REGEXP_REPLACE(/a, '.*', '\0\0\0'))").value(record) is None


def test_a_cheap_filter_never_asks_its_budget():
    """Comparisons of fields with constants, paths and arithmetic take nothing of the budget, and count nothing."""
    record = {"symbol": "X", "qty": 11, "px": 2.5, "customer": {"country": "CH"}, "note": "urgent: call"}
    for text in (
        "/symbol = 'X' AND /qty > 10",
        "/symbol IN ('X', 'Y') AND /qty BETWEEN 5 AND 18",
        "/customer/country = 'CH' AND /inventory IS NULL",
        "/note LIKE '^urgent' AND /note LIKE 'call' AND /note LIKE '(?i)URG[AE]NT'",
        "/qty * /px > 10 AND NOT /qty / 2 = 1",
    ):
        assert compile_filter(text).matches(record, Untouched())


def test_work_of_one_record_does_not_burden_the_next():
    """The budget of an evaluation is full again for each record."""
    selected = compile_filter("ARRAY_SUM(/a) = 5000 AND LENGTH(CONCAT(/b, /b)) = 400000")
    record = {"a": [1] * 5000, "b": "x" * 200_000}
    assert all(selected.matches(record) for _ in range(20))


@pytest.mark.parametrize("record", [b"bytes", None, [1]])
def test_a_record_without_fields_may_take_more_than_the_free_work(record):
    """The paths of a record that is no object are NULL, also where its evaluation is counted."""
    selected = compile_filter("LENGTH(CONCAT(SOW_KEY(), SOW_KEY())) = 400000 AND /a IS NULL")
    assert selected.matches(record, RecordMetadata(sow_key="x" * 200_000))


def test_the_words_of_a_filter_are_limited_and_a_list_counts_as_one():
    """A filter of too many words and signs is refused with the place; a list of ten thousand keys is compiled."""
    text = " OR ".join(["/a = 1"] * 700)
    with pytest.raises(FilterError, match=r"more than 2,500 words and signs; make it shorter, or write `IN \(…\)`"):
        compile_filter(text)
    assert compile_work(text) > TOKENS_MAX
    listed = ", ".join(f"'k{number}'" for number in range(5000))
    for text, matching, other in (
        (f"/a IN ({listed})", "k4999", "k5000"),
        (f"/a NOT IN ({listed})", "k5000", "k4999"),
        (f"/a BEGINS WITH ({listed})", "k4999x", "xk4999"),
        (f"/a ENDS WITH ({listed})", "xk4999", "k4999x"),
        (f"COALESCE({', '.join(map(str, range(-9, 30)))}) = /a", -9, 9),
        (f"/a IN ({', '.join(map(str, range(-99, 99)))})", -98.0, 99),
        ("/a IN (" + ", ".join(["'it''s'", "r'\\x'", '"b"', "1e3", ".5"] * 9) + ")", "it's", "it''s"),
    ):
        assert compile_work(text) < TOKENS_MAX
        assert compile_filter(text).matches({"a": matching})
        assert not compile_filter(text).matches({"a": other})
    with pytest.raises(FilterError, match=r"column 22: expected a text in quotes.*; found a number"):
        compile_filter("/a BEGINS WITH ('a', 1" + ", 'b'" * 20 + ")")


def test_the_regular_expressions_of_a_filter_are_limited():
    """The regular expressions of a filter are limited together, as each character may take long to compile."""
    one = "/a LIKE '" + "[ab]" * (PATTERN_CHARACTERS_MAX // 8) + "'"
    assert compile_filter(one).text == one
    with pytest.raises(FilterError, match=r"have 1,000 characters|have 1,500 characters, and may have 1,000"):
        compile_filter(f"{one} OR {one} OR {one}")
    assert compile_filter("/a LIKE '" + "x" * 5000 + "'").matches({"a": "x" * 5000})


def test_numbers_with_the_same_hash_are_not_looked_up_by_it():
    """The keys of numbers of many digits are texts, whose hash is random; equal numbers have equal keys."""
    numbers = [Decimal(number * (2**61 - 1)) for number in range(1, 50)]
    assert {type(number_key(number)) for number in numbers} == {str}
    assert number_key(Decimal("1E+20")) == number_key(10**20) == number_key(1e20)
    assert number_key(Decimal("5.00")) == number_key(5) == number_key(5.0)
    assert number_key(Decimal("12345678901234567890.50")) == number_key(Decimal("12345678901234567890.5"))
    assert compile_filter("/a IN (/b)").matches({"a": numbers[7], "b": numbers})
    assert (
        compile_filter("/a != /b").matches({"a": ["12345678901234567890"] * 9, "b": [12345678901234567890] * 9})
        is False
    )


COSTLY = "LENGTH(REPLACE(REPLACE(REPLACE(/a, 'a', /b), 'b', /c), 'c', /d)) > 9"


@pytest.mark.parametrize(
    ("place", "settings"),
    [
        (
            "conflated.slow.filter",
            {"conflated": {"slow": {"underlying": "orders", "interval": "1s", "filter": COSTLY}}},
        ),
        ("queues.work.filter", {"queues": {"work": {"underlying": "orders", "filter": COSTLY}}}),
        ("views.open.filter", {"views": {"open": {"underlying": "orders", "fields": {"/x": "/a"}, "filter": COSTLY}}}),
        ("/x", {"views": {"open": {"underlying": "orders", "fields": {"/x": COSTLY}}}}),
        ("/x", {"views": {"sums": {"underlying": "orders", "group_by": ["/a"], "fields": {"/x": f"SUM({COSTLY})"}}}}),
        ("/x", {"topics": {"orders": {"key": ["/id"], "enrich": {"/x": COSTLY}}}}),
        ("/x", {"topics": {"orders": {"key": ["/id"], "preprocess": {"/x": COSTLY}}}}),
    ],
)
def test_a_costly_expression_of_the_settings_is_refused_by_check(place, settings, tmp_path, capfd):
    """Filters and fields of copies, queues, views and rules are refused with the setting, the place and the reason."""
    tree = {"kafka": {"bootstrap.servers": "localhost:1"}, "topics": {"orders": {"key": ["/id"]}}} | settings
    file = tmp_path / "sowstream.yaml"
    file.write_text(yaml.safe_dump(tree))
    code = run(["check", str(file)])
    shown = " ".join(" ".join(capfd.readouterr()).split())
    assert code == 2, shown
    assert place in shown
    assert "line 1, column" in shown
    assert "up to here its functions make texts of" in shown


_LONG: Final = 60_000
_DIGITS: Final = "1" * _LONG
_OPEN: Final = "'" + r"\'" * (_LONG // 2)
_SPACES: Final = " " * _LONG


def _project(text):
    options = parse_options(f"grouping=[/g],projection=[{text}]", live=True, delta=False)
    GroupingSpec(Topic("t", load_codec("json"), KeyFields(("/id",))), None, options)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (compile_work, f"/a IN ({_DIGITS}"),
        (compile_work, f"({_DIGITS}) OR /a = 1"),
        (compile_work, _OPEN),
        (compile_filter, f"/a IN ({_DIGITS}"),
        (compile_filter, f"/a IN ({_DIGITS}) OR /b = 1"),
        (compile_filter, _OPEN),
        (SortOrder, _OPEN),
        (partial(Select, key=KeyFields(("/id",))), _OPEN),
        (_project, f"a{_SPACES}b"),
        (_project, f"SUM(/a){_SPACES}AS{_SPACES}x"),
        (is_respelled, f"{_DIGITS}x"),
        (partial(compare, "1"), f"{_DIGITS}x"),
        (check_addend, f"{_DIGITS}x"),
        (partial(exact_sum, "1"), f"{_DIGITS}.{_DIGITS}x"),
    ],
)
def test_a_long_text_is_gone_through_once(read, text):
    """A text of a stranger takes a time that grows with its length, not with the square of it: one held a gateway."""
    began_s = time.process_time()
    with contextlib.suppress(SowstreamError):
        read(text)
    assert time.process_time() - began_s < 3
