"""The filter index omits only filters that do not match, and does not evaluate the others one by one."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from bson import Decimal128, Int64
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgpack import Timestamp

from processor.filter import compile_filter
from processor.subscriptions.request.filter_index import FilterIndex

PROVED = settings(max_examples=200, deadline=None, print_blob=True)

TEXTS = [
    "",
    "a",
    "X",
    "10",
    "10.0",
    "1e1",
    "010",
    "0",
    "-0",
    "true",
    "1",
    ".1",
    "0.1",
    "1e23",
    "1E+400",
    "9007199254740993",
    "inf",
    "nan",
    "MTA=",
    "2026-01-02",
    "2026-01-02T01:00:00.000+01:00",
    " 1",
]
NUMBERS = [
    0,
    1,
    10,
    -1,
    0.1,
    10.0,
    -0.0,
    1e23,
    10**23,
    99999999999999991611392,
    2**53,
    2**53 + 1,
    float(2**53),
    10**400,
]
TENTH = 0.1
DECIMALS = [
    Decimal(text)
    for text in ("10", "10.0", "1E+1", "0.1", "1E+23", "1E+400", "9007199254740993", "NaN", "Infinity", "0")
] + [Decimal(TENTH)]
OTHERS = [
    True,
    False,
    None,
    b"10",
    b"",
    date(2026, 1, 2),
    datetime(2026, 1, 2, tzinfo=UTC),
    Timestamp(1_767_312_000),
    Decimal128("10.00"),
    Int64(10),
    Int64(1),
    float("inf"),
    float("nan"),
]
SCALARS = st.sampled_from([*TEXTS, *NUMBERS, *DECIMALS, *OTHERS])
NAMES = st.sampled_from(["a", "b"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2), max_leaves=4
)
RECORDS = st.dictionaries(NAMES, VALUES, max_size=2)

LITERALS = st.sampled_from(
    [
        *(f"'{text}'" for text in TEXTS),
        *(str(number) for number in NUMBERS),
        "TRUE",
        "FALSE",
        "NULL",
        "1E400",
        "0.10000000000000000555",
        "10.00000000000000000000",
    ]
)
PATHS = st.sampled_from(["/a", "/b", "/a/b", "/a[0]", "/b[1]/a", "/a/a"])
EQUALITIES = st.one_of(
    st.builds("{} = {}".format, PATHS, LITERALS),
    st.builds("{} = {}".format, LITERALS, PATHS),
    st.builds(
        lambda path, values: f"{path} IN ({', '.join(values)})", PATHS, st.lists(LITERALS, min_size=1, max_size=3)
    ),
)
PREDICATES = (
    EQUALITIES
    | EQUALITIES
    | st.one_of(
        st.builds("{} {} {}".format, PATHS, st.sampled_from(["!=", "<", ">="]), LITERALS),
        st.builds("{} = {}".format, PATHS, PATHS),
        st.builds("{} IN ({}, {})".format, PATHS, LITERALS, PATHS),
        st.builds("{} NOT IN ({})".format, PATHS, LITERALS),
        st.builds("{} IS NULL".format, PATHS),
        st.builds("UPPER({}) = {}".format, PATHS, LITERALS),
        PATHS,
    )
)
FILTERS = st.recursive(
    PREDICATES,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("(NOT {})".format, inner),
        st.builds("({} OR {} AND {})".format, inner, inner, inner),
    ),
    max_leaves=5,
).map(compile_filter)


def index_of(*texts):
    """An index of filters whose items are their texts."""
    index = FilterIndex()
    for text in texts:
        index.add(None if text is None else compile_filter(text), text)
    return index


def candidates_of(index, record):
    """The candidates for a record."""
    return list(index.candidates(record))


@PROVED
@given(st.lists(FILTERS, max_size=6), st.lists(RECORDS, min_size=1, max_size=4))
def test_no_filter_that_matches_is_left_out(filters, records):
    """Every matching filter is a candidate, once, in the order of insertion."""
    index = FilterIndex()
    for number, filter_ in enumerate(filters):
        index.add(filter_, number)
    for record in records:
        candidates = candidates_of(index, record)
        matching = [number for number, filter_ in enumerate(filters) if filter_.matches(record)]
        assert set(matching) <= set(candidates)
        assert candidates == sorted(set(candidates))


@PROVED
@given(EQUALITIES.map(compile_filter), RECORDS)
@example(compile_filter("/a = '.1'"), {"a": Decimal(TENTH)})
@example(compile_filter("/a = 1e23"), {"a": 99999999999999991611392})
@example(compile_filter("/a = 99999999999999991611392"), {"a": 1e23})
@example(compile_filter("/a = 0.10000000000000000555"), {"a": 0.1})
def test_an_equality_alone_is_a_candidate_only_where_it_matches(filter_, record):
    """A filter that is one equality is a candidate for the records that match it and for no others."""
    index = FilterIndex()
    index.add(filter_, "item")
    assert candidates_of(index, record) == (["item"] if filter_.matches(record) else [])


@pytest.mark.parametrize(
    ("text", "records"),
    [
        ("/a = 'X' AND /b > 1", [{"a": "X", "b": 2}]),
        ("/b > 1 AND ('X' = /a)", [{"a": "X", "b": 2}, {"a": ["Y", ["X"]]}]),
        ("/a = 10", [{"a": 10}, {"a": 10.0}, {"a": "10"}, {"a": "1e1"}, {"a": Decimal("10.0")}, {"a": Int64(10)}]),
        ("/a = '10'", [{"a": 10}, {"a": 10.0}, {"a": "10"}, {"a": Decimal(10)}]),
        ("/a = 0.1", [{"a": 0.1}, {"a": "0.1"}, {"a": Decimal("0.1")}, {"a": Decimal("0.10")}]),
        ("/a = 1e23", [{"a": 1e23}, {"a": 10**23}, {"a": Decimal("1E+23")}]),
        ("/a = TRUE", [{"a": True}, {"a": 1}, {"a": "1"}]),
        ("/a IN ('X', 10, NULL)", [{"a": "X"}, {"a": "10"}, {"a": 10}]),
        ("/a = 'X' OR /a = 'Y' OR /a IN ('Z', 5)", [{"a": "X"}, {"a": "Y"}, {"a": "Z"}, {"a": 5}]),
        ("(/a = 'X' OR /a = 'Y') AND /b = 1", [{"a": "Y", "b": 1}]),
        ("(/a = 'X' AND /b = 1) OR (/b = 2 AND /a = 'Y')", [{"a": "X", "b": 1}, {"a": "Y", "b": 2}]),
        ("/a/b = 'X'", [{"a": {"b": "X"}}, {"a": [{"b": "Y"}, {"b": "X"}]}]),
        ("/a[1]/b = 'X'", [{"a": [0, {"b": "X"}]}]),
        ("/a = 'MTA='", [{"a": b"10"}]),
        ("/a = '2026-01-02'", [{"a": date(2026, 1, 2)}]),
        ("/a = 'X' AND /a = 'Y'", [{"a": ["X", "Y"]}]),
    ],
)
def test_an_equality_of_every_match_is_indexed(text, records):
    """An equality that every match must satisfy is indexed: records with another value or none have no candidates."""
    index = index_of(text)
    for record in records:
        assert candidates_of(index, record) == [text]
    for record in (
        {},
        {"a": "other", "b": 99},
        {"a": ["other"], "b": 99},
        {"a": None},
        {"a": {}},
        {"c": "X"},
        b"X",
        None,
    ):
        assert candidates_of(index, record) == []


@pytest.mark.parametrize(
    "text",
    [
        None,
        "/a != 'X'",
        "NOT /a = 'X'",
        "/a NOT IN ('X')",
        "/a = 'X' OR /b = 1",
        "/a = 'X' OR /b > 1",
        "/a = 'X' OR /a = 'Y' OR /b = 1",
        "/a = /b",
        "/a IN ('X', /b)",
        "UPPER(/a) = 'X'",
        "IF(/a = 'X', TRUE, TRUE)",
        "/a LIKE 'X'",
        "(/a = 'X') = FALSE",
    ],
)
def test_other_filters_are_not_indexed(text):
    """A filter without such an equality is a candidate for every record, also for one that is no object."""
    index = index_of(text)
    for record in ({}, {"a": "other"}, {"a": "X", "b": 1}, b"X", None):
        assert candidates_of(index, record) == [text]


def test_texts_and_numbers_are_indexed_apart():
    """Texts and numbers are indexed apart, since two texts are equal as texts only."""
    index = index_of("/a = '10'", "/a = '10.0'", "/a = 10")
    assert candidates_of(index, {"a": "10"}) == ["/a = '10'", "/a = 10"]
    assert candidates_of(index, {"a": "10.0"}) == ["/a = '10.0'", "/a = 10"]
    assert candidates_of(index, {"a": "1e1"}) == ["/a = 10"]
    assert candidates_of(index, {"a": 10}) == ["/a = '10'", "/a = '10.0'", "/a = 10"]


def test_a_comparison_with_null_is_never_a_candidate():
    """A filter that compares with NULL is never a candidate, since the comparison is always false."""
    index = index_of("/a = NULL", "/a = ''", "/a IN (NULL, '')", "/b = 1 AND /a = ''")
    assert (
        candidates_of(index, {"a": None})
        == candidates_of(index, {"a": ""})
        == candidates_of(index, {})
        == candidates_of(index, {"a": "", "b": 1})
        == []
    )
    for text in ("/a = NULL", "/a = ''", "/a IN (NULL, '')", "/b = 1 AND /a = ''"):
        index.remove(compile_filter(text), text)
    assert len(index) == 0


def test_candidates_come_in_the_order_of_insertion():
    """Candidates come once and in the order of insertion, through any path or value and through arrays."""
    texts = ["/b = 1", "/a IN ('X', 'Y')", None, "/a = 'Y'", "/a/c = 1", "/b = 2 OR /a = 'X'", "/a = 'X'"]
    index = index_of(*texts)
    assert candidates_of(index, {"a": ["X", "Y", "X", {"c": 1}], "b": 1}) == texts


def test_an_item_with_several_filters():
    """An item with several filters is a candidate once, until the last of them is removed."""
    index = FilterIndex()
    filters = [compile_filter(text) for text in ("/a = 1", "/b = 1", "/c > 1")]
    for filter_ in filters:
        index.add(filter_, "item")
    index.add(None, "other")
    assert candidates_of(index, {"a": 1, "b": 1}) == ["item", "other"]
    index.remove(filters[2], "item")
    assert candidates_of(index, {"a": 2, "b": 1}) == ["item", "other"]
    index.remove(filters[1], "item")
    assert candidates_of(index, {"a": 2, "b": 1}) == ["other"]
    assert candidates_of(index, {"a": 1}) == ["item", "other"]


def test_existing_entries_cannot_be_added_nor_missing_ones_removed():
    """Adding an existing filter and removing a missing one are errors; filters are equal if their texts are."""
    index = index_of("/a = 1")
    with pytest.raises(ValueError, match="already"):
        index.add(compile_filter("/a = 1"), "/a = 1")
    for filter_, item in [(None, "/a = 1"), (compile_filter("/a = 2"), "/a = 1"), (compile_filter("/a = 1"), "other")]:
        with pytest.raises(KeyError):
            index.remove(filter_, item)
    assert candidates_of(index, {"a": 1}) == ["/a = 1"]


def test_the_index_may_change_during_an_iteration():
    """The index may change during an iteration over candidates, which are those of its beginning."""
    for record in ({"a": 1}, {"b": 1}):
        index = index_of("/a = 1", "/a = 1 AND /c > 1", None, "/b > 0")
        expected = candidates_of(index, record)
        candidates = index.candidates(record)
        index.remove(None, None)
        index.add(compile_filter("/a IN (1)"), "new")
        assert list(candidates) == expected


def test_a_filter_is_kept_by_its_rarest_value():
    """A filter is indexed by its rarest value, so a value that many filters share makes no candidates."""
    texts = [f"/state = 'new' AND /customer = 'c{number}'" for number in range(1000)]
    index = index_of(*texts)
    assert texts[500] in candidates_of(index, {"state": "new", "customer": "c500"})
    assert len(candidates_of(index, {"state": "new", "customer": "c500"})) <= 3
    assert len(candidates_of(index, {"state": "new"})) <= 3


def test_ten_thousand_equalities_cost_one_look_up():
    """A look-up among ten thousand equalities touches only the items of the record's own value."""
    index = FilterIndex()
    for number in range(10_000):
        index.add(compile_filter(f"/symbol = 'X{number}'"), number)
    assert candidates_of(index, {"symbol": "X77"}) == [77]
    assert candidates_of(index, {"symbol": "Y"}) == []
    assert candidates_of(index, {"other": "X77"}) == []
    (place,) = index._places["symbol"].values()
    hits = []
    place.find({"symbol": "X77"}, hits)
    assert hits == [{78: 77}]


class Indexes(RuleBasedStateMachine):
    """An index next to a list of its entries."""

    def __init__(self):
        super().__init__()
        self.index, self.kept = FilterIndex(), []

    @rule(filter_=FILTERS | st.none(), item=st.integers(0, 3))
    def add(self, filter_, item):
        """Add a filter unless the item has it."""
        text = filter_ and filter_.text
        if (text, item) not in [(kept and kept.text, other) for kept, other in self.kept]:
            self.index.add(filter_, item)
            self.kept.append((filter_, item))

    @rule(number=st.integers(0, 20))
    def remove(self, number):
        """Remove any filter that is in the index."""
        if self.kept:
            filter_, item = self.kept.pop(number % len(self.kept))
            self.index.remove(filter_ and compile_filter(filter_.text), item)

    @rule(record=RECORDS)
    def ask(self, record):
        """Check that the candidates contain all matching items and only existing ones, each once."""
        candidates = candidates_of(self.index, record)
        assert {item for filter_, item in self.kept if filter_ is None or filter_.matches(record)} <= set(candidates)
        assert set(candidates) <= {item for _, item in self.kept}
        assert len(candidates) == len(set(candidates))

    @invariant()
    def as_many(self):
        """Check that the size is the number of added entries that were not removed."""
        assert len(self.index) == len(self.kept)

    def teardown(self):
        """Check that nothing is left after all entries were removed."""
        for filter_, item in self.kept:
            self.index.remove(filter_, item)
        inside = [value for value in vars(self.index).values() if not isinstance(value, int)]
        assert len(inside) == 4
        assert not any(inside)


Indexes.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None, print_blob=True)
TestIndexes = Indexes.TestCase


def test_an_update_finds_the_candidates_of_both_records(random_seed):
    """The candidates of an update are those of the record now and of the one before, each once."""
    rng = random.Random(random_seed)
    texts = ["/a = 1", "/a = 'x'", "/a/b = 2", "/a IN (2, 3) AND /c = 1", "/c > 1", "/c BETWEEN 2 AND 3", None]
    index = index_of(*texts)

    def value():
        return rng.choice([None, 1, 1.0, 2, 3, True, "x", "1", [1, "x"], {"b": 2}, {"b": 3}])

    for _ in range(500):
        now, before = ({name: value() for name in "abc" if rng.random() < 0.7} for _ in range(2))
        if rng.random() < 0.5:
            before = {**now, **({"b": 1} if rng.random() < 0.5 else {})}
        both = list(index.candidates(now, before))
        assert len(both) == len(set(both))
        assert set(both) == {*index.candidates(now), *index.candidates(before)}
