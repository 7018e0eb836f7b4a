"""The filter index finds every filter by ranges and beginnings that a record matches, and few others."""

import random

import pytest

from processor.filter import compile_filter
from processor.subscriptions.request.filter_index import FilterIndex

VALUES = [
    None,
    "",
    "abc",
    "abd",
    "b",
    "7",
    "zz",
    True,
    False,
    0,
    1,
    2.5,
    3,
    -4,
    10**17,
    0.1,
    [1, 9],
    ["abc", 2],
    {"x": 1},
]


def texts(rng, count):
    """Random filters by ranges and beginnings."""
    numbers = [-5, -1, 0, 1, 2, 2.5, 3, 7, 100]
    for _ in range(count):
        low, high = rng.choice(numbers), rng.choice(numbers)
        path = rng.choice(["/a", "/b", "/o/p"])
        yield rng.choice(
            [
                f"{path} > {low}",
                f"{low} >= {path}",
                f"{path} BETWEEN {low} AND {high}",
                f"{path} > {low} AND {path} < {high}",
                f"{path} < {low} OR {path} BETWEEN {low} AND {high}",
                f"{path} BEGINS WITH ('ab', 'b')",
                f"{path} LIKE '^abc?'",
                f"{path} LIKE '^ab'",
                f"{path} > {low} AND /b BEGINS WITH ('a')",
                f"NOT {path} > {low}",
            ]
        )


def test_no_match_is_missed(random_seed):
    """For all values, each filter that a record matches is a candidate, also after others were removed."""
    rng = random.Random(random_seed)
    for _ in range(30):
        index = FilterIndex()
        filters = {text: compile_filter(text) for text in dict.fromkeys(texts(rng, 25))}
        for text, compiled in filters.items():
            index.add(compiled, text)
        for text in rng.sample(sorted(filters), len(filters) // 3):
            index.remove(filters.pop(text), text)
        for _ in range(40):
            record = {name: rng.choice(VALUES) for name in "ab" if rng.random() < 0.8}
            if rng.random() < 0.5:
                record["o"] = {"p": rng.choice(VALUES)}
            matching = {text for text, compiled in filters.items() if compiled.matches(record)}
            assert matching <= set(index.candidates(record)), record


@pytest.mark.parametrize("form", ["/px BETWEEN {0} AND {0}.5", "/px >= {0} AND /px < {1}"])
def test_few_of_many_ranges_are_candidates(form):
    """Of a thousand narrow ranges a value has at most a few candidates."""
    index = FilterIndex()
    for number in range(1000):
        text = form.format(number, number + 1)
        index.add(compile_filter(text), text)
    assert len(list(index.candidates({"px": 500.25}))) <= 2
    assert not list(index.candidates({"qty": 1}))
