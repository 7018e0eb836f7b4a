"""The histories find faults: a check that cannot fail proves nothing."""

from __future__ import annotations

import pytest

from tests.builtin.view.bugs import OF_GROUPS, OF_JOINS
from tests.builtin.view.histories import History
from tests.builtin.view.join_chain import JoinHistory

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
