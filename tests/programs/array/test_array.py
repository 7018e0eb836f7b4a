"""The array of features: every pair of them meets, and its histories agree with the model."""

import itertools
from collections import Counter

import pytest

from tests.programs.array.features import FACTORS, FORBIDDEN, VALUES
from tests.programs.array.pairs import Factors, Forbidden, covering_array, pairs_in
from tests.programs.array.play import play

TURNS = 10
SEEDS = 1


@pytest.mark.timeout(600)
def test_every_pair_of_features_gives_the_results_of_the_oracle(array_rows, site, random_seed):
    """SOW and delta records, headers, rejections, copies and subscriptions are those of the model, in every row."""
    wrong, healthy = [], Counter()
    for number, row in enumerate(array_rows):
        for seed in range(random_seed, random_seed + SEEDS):
            problems = play(row, seed, site, TURNS)
            if problems:
                wrong.append(f"row {number}, seed {seed}: {problems[0]}\n  {row}")
                break
        else:
            healthy.update(pairs_in(row))
    suspects = {pair for row in array_rows for pair in pairs_in(row)} - set(healthy)
    # A cause of the failure is in each row that fails, and in none that does not.
    assert not wrong, "\n".join([*wrong, f"pairs in no good row: {sorted(suspects)[:40]}"])


SMALL = Factors(
    {"a": ["1", "2", "3"], "b": ["x", "y"], "c": ["p", "q"]},
    [
        Forbidden({"a": frozenset(["1"]), "b": frozenset(["x"])}, "they cannot meet"),
        Forbidden({"a": frozenset(["2"]), "b": frozenset(["x", "y"]), "c": frozenset(["q"])}, "nor can these"),
    ],
)


def test_pairs_are_feasible_where_some_allowed_row_has_them():
    """A pair may be infeasible though no combination names it alone."""
    allowed = [
        row
        for values in itertools.product(*SMALL.values.values())
        if SMALL.is_allowed(row := dict(zip(SMALL.values, values, strict=True)))
    ]
    assert {pair for row in allowed for pair in pairs_in(row)} == set(SMALL.feasible_pairs())
    assert (("a", "2"), ("c", "q")) not in SMALL.feasible_pairs()


def test_every_feasible_pair_of_features_is_covered_by_an_allowed_row(array_rows):
    """Each row has one value of every factor; together they have every pair that can meet."""
    feasible = FACTORS.feasible_pairs()
    covered = {pair for row in array_rows for pair in pairs_in(row)}
    assert covered == set(feasible)
    assert all(FACTORS.is_allowed(row) for row in array_rows)
    assert all(row.keys() == VALUES.keys() for row in array_rows)
    print(f"{len(feasible)} of {len(list(FACTORS.pairs()))} pairs in {len(array_rows)} rows")
    assert len(feasible) > 3_000
    assert len(array_rows) < 100


def test_the_same_factors_give_the_same_rows(array_rows):
    """The same factors give the same rows, so that a row that failed is found again by its number."""
    assert covering_array(FACTORS) == array_rows


def test_every_infeasible_pair_has_a_reason():
    """A pair that no row has is forbidden by a combination, which names its reason in a sentence."""
    feasible = set(FACTORS.feasible_pairs())
    for pair in FACTORS.pairs():
        assert (pair in feasible) is not any(combination.holds(dict(pair)) for combination in FORBIDDEN)
    assert all(len(combination.reason.split()) > 3 for combination in FORBIDDEN)
