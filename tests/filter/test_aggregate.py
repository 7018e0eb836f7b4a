"""Aggregates: exact, independent of the order of their members, and right after members leave."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.builtin.view.stage_output import Contributions
from processor.errors import ConfigurationError
from processor.filter.aggregate import Contribution, GroupIncomplete, compile_aggregates, compile_fields
from processor.filter.aggregate.extremes import KEPT_MAX, Exhausted, Extreme, ExtremeOfValues
from processor.filter.aggregate.moments import Moments, as_number, scaled
from processor.filter.syntax_tree import Scalar
from processor.filter.value import number as number_of

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=12, min_value=-(10**20), max_value=10**20),
)


def exact(number: float | Decimal | str) -> Fraction:
    """A number as it is written."""
    return Fraction(repr(number) if isinstance(number, float) else number)


@given(st.lists(NUMBERS, max_size=30), st.randoms())
def test_sum_is_exact_in_any_order(numbers: list[float | Decimal], rng) -> None:
    """A sum equals that of fractions, in any order, also when other numbers came and left again."""
    moments, others = Moments(), [0.1, 10**30, Decimal("1e-30")]
    changes = [(number, 1) for number in (*numbers, *others)]
    rng.shuffle(changes)
    for number, times in (*changes, *((other, -1) for other in others)):
        value = scaled(number)
        assert value is not None
        moments.add(value, times)
    total = sum((exact(number) for number in numbers), Fraction())
    assert (None if not numbers else total) == (None if moments.sum() is None else exact(moments.sum()))
    if numbers and abs(total) < 1e300:
        assert moments.mean() == float(total / len(numbers))


@given(st.lists(st.floats(-1e12, 1e12).map(lambda number: round(number, 6)), min_size=2, max_size=20))
def test_deviation_is_the_nearest_double(numbers: list[float]) -> None:
    """A standard deviation squared lies between the squares of the middles to the next doubles."""
    moments = Moments()
    for number in numbers:
        moments.add(scaled(number))  # type: ignore[arg-type]
    values = [exact(number) for number in numbers]
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    root = moments.deviation(of_sample=False)
    assert root is not None
    below = (Fraction(root) + Fraction(math.nextafter(root, -1))) / 2
    above = (Fraction(root) + Fraction(math.nextafter(root, math.inf))) / 2
    assert max(below, 0) ** 2 <= variance <= above**2


def test_numbers_are_written_as_they_are() -> None:
    """An exact number becomes an integer, a double that is written so, or else a Decimal."""
    assert repr(as_number(3, 1)) == "0.3"
    assert as_number(30, 1) == 3
    assert as_number(2**63 + 1, 0) == 9223372036854775809
    assert as_number(12345678901234567890123, 10) == Decimal("1234567890123.4567890123")


@given(st.data())
def test_extreme_is_right_when_values_leave(data) -> None:
    """The least value is right after any adds and removals, or is known to be unknown."""
    extreme, held = Extreme(is_greatest=data.draw(st.booleans())), []
    for value in data.draw(st.lists(st.integers(0, 3000), max_size=KEPT_MAX + 200)):
        extreme.add((value,))
        held.append(value)
    for _ in range(data.draw(st.integers(0, len(held)))):
        value = held.pop(data.draw(st.integers(0, len(held) - 1)))
        extreme.remove((value,))
    try:
        best = extreme.best()
    except Exhausted:
        assert len(held) > 0
        return
    choose = max if extreme._is_greatest else min
    assert best == ((choose(held),) if held else None)


KINDS = st.one_of(
    st.integers(-3, 3), st.sampled_from([0.5, 1.0, -1.0, Decimal("1.5"), Decimal(2), "1", "-1.0", "2.0", "x", "y", ""])
)


@given(st.booleans(), st.lists(KINDS, max_size=20), st.data())
def test_extreme_of_values_of_any_kind(is_greatest: bool, held: list[Scalar], data) -> None:
    """`MIN` and `MAX` of integers, other numbers and texts, in any mixture, also after some have left."""
    extreme = ExtremeOfValues(is_greatest=is_greatest)
    for value in held:
        extreme.add(value)
    for _ in range(data.draw(st.integers(0, len(held)))):
        extreme.remove(held.pop(data.draw(st.integers(0, len(held) - 1))))
    choose = max if is_greatest else min
    texts = [value for value in held if isinstance(value, str)]
    no_numbers = [value for value in texts if number_of(value) is None]
    if len(texts) == len(held):
        expected = choose(texts, default=None)
    elif is_greatest and no_numbers:
        expected = max(no_numbers)
    else:
        numbers = [value for value in held if number_of(value) is not None]
        # Equal ones by the names of their types, then as they are written.
        expected = choose(numbers, key=lambda value: (exact(value), type(value).__name__, str(value)))
    found = extreme.value()
    assert (type(found), str(found)) == (type(expected), str(expected))


JSON_KINDS = KINDS.filter(lambda value: not isinstance(value, Decimal)) | st.sampled_from([True, 10**20, -0.0, 1e300])


@given(st.booleans(), st.lists(st.tuples(st.integers(0, 2), JSON_KINDS), max_size=12))
def test_extreme_of_parts_is_that_of_all_values(is_greatest: bool, placed: list[tuple[int, Scalar]]) -> None:
    """`MIN` and `MAX` of the partial aggregates of a group's parts, through JSON, are those of its values, spelled so.

    So they are after each part was replaced by the next one.
    """
    text = f"{'MAX' if is_greatest else 'MIN'}(/x)"
    definition = compile_aggregates({}, {"/x": text})
    whole, combined = definition.new_group(), definition.new_combined_group()
    parts = [definition.new_group() for _ in range(3)]
    contributions = Contributions()

    def sent(number: int) -> Contribution:
        [part] = contributions.decode_many(contributions.encode_many([parts[number].partial((0, number, 0))]))
        return part

    present: dict[int, Contribution] = {}
    for number, value in placed:
        member = definition.contribution({"x": value}, (0, 0, 0))
        for group in (whole, parts[number]):
            group.add(member)
        part = sent(number)
        if number in present:
            combined.replace(present[number], part)
        else:
            combined.add(part)
        present[number] = part
        [expected], [found] = whole.values(), combined.values()
        assert (type(found), str(found)) == (type(expected), str(expected))


def test_group_is_incomplete_only_after_many_removals() -> None:
    """A group whose kept extremes have all left says so, and is right once it is built again."""
    definition = compile_aggregates({}, {"/least": "MIN(/x)"})
    parts = [definition.contribution({"x": number}, (0, 0, number)) for number in range(3 * KEPT_MAX)]
    group = definition.new_group()
    for part in parts:
        group.add(part)
    for part in parts[: KEPT_MAX * 2]:
        group.remove(part)
    with pytest.raises(GroupIncomplete):
        definition.row(group)
    left = definition.new_group()
    for part in parts[KEPT_MAX * 2 :]:
        left.add(part)
    assert definition.row(left) == {"least": KEPT_MAX * 2}


def test_null_and_texts_in_aggregates() -> None:
    """NULL counts nowhere but in COUNT(*); a text that is a number is one; other texts do not add up."""
    fields = {"/all": "COUNT(*)", "/x": "COUNT(/x)", "/sum": "SUM(/x)", "/kinds": "COUNT_DISTINCT(/x)"}
    definition = compile_aggregates({"/c": "/c"}, fields)
    group = definition.new_group()
    for place, x in enumerate((1, 1.0, "2", "tea", "", None, [], "1e99999")):
        group.add(definition.contribution({"c": "a", "x": x}, (0, 0, place)))
    assert definition.row(group) == {"c": "a", "all": 8, "x": 5, "sum": 4, "kinds": 4}


def test_aggregate_of_nothing_is_null() -> None:
    """The sum, mean, extremes and deviations of nothing are null; its counts are 0."""
    functions = ("COUNT", "COUNT_DISTINCT", "SUM", "AVG", "MIN", "MAX", "FIRST", "LAST", "STDDEV_POP", "STDDEV_SAMP")
    definition = compile_aggregates({}, {f"/{name}": f"{name}(/x)" for name in functions})
    group = definition.new_group()
    group.add(definition.contribution({}, (0, 0, 0)))
    assert definition.row(group) == dict.fromkeys(functions) | {"COUNT": 0, "COUNT_DISTINCT": 0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/y", "column 1: /y is neither grouped nor aggregated"),
        ("SUM(/a) + /y", "column 11: /y is neither grouped nor aggregated"),
        ("SUM(MAX(/a))", "column 5: an aggregate inside another one"),
        ("SUMM(/a)", "there is no function SUMM; the aggregate is SUM"),
        ("CUONT(*)", "there is no function CUONT(*); the aggregate is COUNT(*)"),
        ("SUM(*)", "there is no function SUM(*); the aggregate is SUM of a field, as only COUNT takes *"),
        ("COUNT()", "to count records write COUNT(*)"),
        ("SUM(/a", "expected ) or a comma"),
        ("NOPE(/c)", "NOPE"),
        ("UNIX_TIMESTAMP()", "its value changes with the clock"),
    ],
)
def test_wrong_expression_names_the_place_and_the_remedy(text: str, message: str) -> None:
    """A definition that cannot be used is refused with its place, and with the remedy."""
    with pytest.raises(ConfigurationError) as caught:
        compile_aggregates({"/c": "/c"}, {"/x": text})
    assert message in str(caught.value)


def test_fields_without_groups() -> None:
    """A projection computes values, leaves out NULL, and refuses aggregates and topics that are not joined."""
    fields = compile_fields({"/a/b": "/x * 2", "/name": "[people]./name", "/all": "/list"}, ["people"])
    assert fields.row({"x": 2, "list": [1, {"y": 2}]}) == {"a": {"b": 4}, "all": [1, {"y": 2}]}
    assert fields.members == ("list", "x")
    assert fields.joined_members("people") == ("name",)
    with pytest.raises(ConfigurationError, match="add `group_by`"):
        compile_fields({"/x": "SUM(/x)"})
    with pytest.raises(ConfigurationError, match="no topic 'people' is joined here"):
        compile_fields({"/x": "[people]./name"})
