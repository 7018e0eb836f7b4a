"""Random histories through the stages of views, with crashes and rollbacks, equal to oracles at each step."""

from __future__ import annotations

import pytest

from tests.builtin.view.histories import History
from tests.builtin.view.join_chain import JoinHistory, SameKeyHistory
from tests.builtin.view.oracle import Duck


def test_rows_of_groups_equal_sql_at_every_step() -> None:
    """After every step the rows equal those of DuckDB and of the Python oracle, and the deltas add up to them."""
    duck = Duck()
    for seed in range(14):
        history = History(seed, duck)
        for step in range(7):
            assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"


@pytest.mark.parametrize("kind", [JoinHistory, SameKeyHistory])
@pytest.mark.parametrize("begin", [0, 10])
def test_rows_of_joins_equal_their_definition_at_every_step(begin: int, kind: type[JoinHistory]) -> None:
    """After every step the rows of a join equal those of a loop over both topics, in any order of the stages."""
    for seed in range(begin, begin + 10):
        history = kind(seed)
        for step in range(5):
            assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"
