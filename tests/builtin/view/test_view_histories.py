"""Random histories through the stages of views equal oracles at each step, and find injected faults."""

from __future__ import annotations

import pytest

from tests.builtin.view.bugs import OF_GROUPS, OF_JOINS
from tests.builtin.view.histories import History, MergedHistory
from tests.builtin.view.join_chain import BroadcastHistory, JoinHistory, SameKeyHistory
from tests.builtin.view.oracle import Duck


@pytest.mark.parametrize("kind", [History, MergedHistory])
def test_rows_of_groups_equal_sql_at_every_step(kind: type[History]) -> None:
    """After every step the rows equal those of DuckDB and of the Python oracle, and the deltas add up to them.

    Each row that was written on the way is that of the prefix of its input that its header `as_of` has.
    """
    duck, having, prefixes, expired = Duck(), 0, 0, 0
    for seed in range(7):
        history = kind(seed, duck)
        for step in range(7):
            assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"
        having, prefixes = having + ("having" in history.view), prefixes + history.view["as_of"]
        expired += history.expired if isinstance(history, MergedHistory) else 1
    assert min(having, prefixes, expired) > 0, "the seeds leave something out"


@pytest.mark.parametrize("kind", [JoinHistory, SameKeyHistory, BroadcastHistory])
@pytest.mark.parametrize("begin", [0, 10])
def test_rows_of_joins_equal_their_definition_at_every_step(begin: int, kind: type[JoinHistory]) -> None:
    """After every step the rows of a join equal those of a loop over both topics, in any order of the stages."""
    for seed in range(begin, begin + 10):
        history = kind(seed)
        for step in range(5):
            assert not (wrong := history.step()), f"seed {seed}, step {step}: {wrong}"


SEEDS, STEPS = 12, 6


@pytest.mark.parametrize("bug", OF_GROUPS)
def test_fault_of_groups_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in a stage of a view with groups makes a history differ from its oracle."""
    OF_GROUPS[bug](monkeypatch)
    assert any(_is_found(History(seed)) for seed in range(SEEDS))


@pytest.mark.parametrize("bug", OF_JOINS)
def test_fault_of_joins_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in a stage of a join makes a history differ from its definition."""
    OF_JOINS[bug](monkeypatch)
    assert any(_is_found(JoinHistory(seed)) for seed in range(SEEDS))


def _is_found(history: History | JoinHistory) -> bool:
    try:
        return any(history.step() for _ in range(STEPS))
    except (AssertionError, KeyError, IndexError, ValueError):
        return True  # The product's own checks, or the oracle's, found it.
