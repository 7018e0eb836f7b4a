"""Tests of the time of commits: soon with little input, seldom with much, never without work."""

import math
from itertools import pairwise

import pytest

from processor.runtime.commit_policy import SPACING_S, CommitPolicy


@pytest.fixture
def policy() -> CommitPolicy:
    """Create a policy of 0.2 s and a thousand records."""
    return CommitPolicy(interval_s=0.2, records_max=1000)


def test_without_work_there_is_no_commit(policy):
    """Time alone is no reason to commit."""
    assert not policy.due(0.0, drained=True)
    assert not policy.due(1000.0, drained=True)


def test_a_thread_that_mostly_waits_commits_when_the_input_runs_dry(policy):
    """After one millisecond of work, a wait of the same length justifies the cost of a commit."""
    policy.worked(10.001, 0.001, 1)
    assert not policy.due(10.001, drained=True)
    assert not policy.due(10.002, drained=False)
    assert policy.due(10.002, drained=True)


def test_a_thread_that_mostly_works_lets_the_transaction_grow(policy):
    """A busy thread whose input runs dry by chance commits after the interval."""
    now_s = 10.0
    while now_s < 10.19:
        now_s += 0.01
        policy.worked(now_s, 0.009, 10)
        assert not policy.due(now_s, drained=True)
    assert policy.due(10.201, drained=False)


def test_punctuation_is_committed_when_the_input_runs_dry(policy):
    """Output of punctuation is committed even by a busy thread; later work has the usual patience."""
    policy.worked(10.01, 0.01, 10)
    policy.worked(10.02, 0.01, 10, is_urgent=True)
    policy.worked(10.03, 0.01, 10)
    assert not policy.due(10.03, drained=False)
    assert policy.due(10.03, drained=True)
    policy.committed(10.03)
    policy.worked(10.04, 0.01, 10)
    assert not policy.due(10.04, drained=True)


def test_frequent_punctuation_is_committed_once_per_spacing(policy):
    """Punctuation every millisecond causes one commit per spacing."""
    began_ms, commits_ms = 10_000, []
    for now_ms in range(began_ms, began_ms + 1_000):
        policy.worked(now_ms / 1000, 0.0001, 1, is_urgent=True)
        if policy.due(now_ms / 1000, drained=True):
            policy.committed(now_ms / 1000)
            commits_ms.append(now_ms)
    assert commits_ms[0] == began_ms
    gaps_ms = {after - before for before, after in pairwise(commits_ms)}
    assert gaps_ms <= {SPACING_S * 1000, SPACING_S * 1000 + 1}


def test_an_idle_thread_sleeps_until_an_urgent_commit_is_due(policy):
    """Without work its sleep is not limited."""
    assert policy.rest_s(10.0) == math.inf
    policy.worked(10.0, 0.001, 1, is_urgent=True)
    assert policy.rest_s(10.0) == 0
    policy.committed(10.0)
    assert policy.rest_s(10.0) == math.inf
    policy.worked(10.01, 0.001, 1, is_urgent=True)
    assert policy.rest_s(10.01) == pytest.approx(SPACING_S - 0.01)
    assert policy.due(10.01 + policy.rest_s(10.01), drained=True)


def test_an_idle_thread_sleeps_until_the_commit_of_its_work_is_due(policy):
    """After three milliseconds of work it sleeps for three more; after much work, until the end of the interval."""
    policy.worked(10.003, 0.003, 1)
    assert policy.rest_s(10.003) == pytest.approx(0.003)
    assert policy.due(10.003 + policy.rest_s(10.003) + 1e-9, drained=True)
    policy.worked(10.103, 0.1, 1)
    assert policy.rest_s(10.103) == pytest.approx(0.097)


def test_only_a_commit_begins_the_spacing(policy):
    """Work without outcome, or work that was rolled back, does not delay the next commit."""
    policy.committed(9.0)
    policy.worked(10.0, 0.001, 1)
    policy.emptied()
    policy.worked(10.001, 0.001, 1, is_urgent=True)
    assert policy.due(10.001, drained=True)


def test_the_spacing_does_not_outlast_the_interval():
    """A commit interval below the spacing is kept."""
    policy = CommitPolicy(interval_s=SPACING_S / 5, records_max=1000)
    policy.committed(10.0)
    policy.worked(10.001, 0.001, 1, is_urgent=True)
    assert not policy.due(10.001, drained=True)
    assert policy.rest_s(10.001) < SPACING_S / 5
    assert policy.due(10.001 + policy.rest_s(10.001), drained=True)


def test_the_interval_begins_with_the_first_work(policy):
    """The interval does not begin with the last commit: work after a pause has all of it."""
    policy.worked(50.1, 0.1, 1)
    assert not policy.due(50.19, drained=False)
    assert policy.due(50.2, drained=False)


def test_many_records_are_enough(policy):
    """A transaction does not grow beyond the configured number of records."""
    policy.worked(10.0, 0.001, 999)
    assert not policy.due(10.0, drained=False)
    policy.worked(10.0, 0.001, 1)
    assert policy.due(10.0, drained=False)


def test_after_a_commit_the_counts_begin_at_zero(policy):
    """Neither time nor records count on."""
    policy.worked(10.0, 0.1, 1000)
    policy.committed(10.0)
    assert not policy.due(99.0, drained=True)
    policy.worked(99.001, 0.001, 1)
    assert not policy.due(99.001, drained=False)
    assert policy.due(99.01, drained=True)


def test_work_without_records_is_committed_too(policy):
    """Output of a punctuation waits no longer than output of records."""
    policy.worked(10.0, 0.0, 0)
    assert policy.due(10.0, drained=True)
