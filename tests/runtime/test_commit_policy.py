"""When to commit: soon while little comes, seldom while much does, never without a reason."""

import math
from itertools import pairwise

import pytest

from processor.runtime.commit_policy import SPACING_S, CommitPolicy


@pytest.fixture
def policy() -> CommitPolicy:
    """Commits within 0.2 s or a thousand records."""
    return CommitPolicy(interval_s=0.2, records_max=1000)


def test_nothing_done_is_nothing_to_commit(policy):
    """However long that lasts."""
    assert not policy.due(0.0, drained=True)
    assert not policy.due(1000.0, drained=True)


def test_a_thread_that_mostly_waits_commits_when_the_input_runs_dry(policy):
    """One millisecond of work: after as long a wait the cost of a commit is worth it."""
    policy.worked(10.001, 0.001, 1)
    assert not policy.due(10.001, drained=True)
    assert not policy.due(10.002, drained=False)
    assert policy.due(10.002, drained=True)


def test_a_thread_that_mostly_works_lets_the_transaction_grow(policy):
    """Busy all the time, and drained now and then by chance: until the interval is over."""
    now_s = 10.0
    while now_s < 10.19:
        now_s += 0.01
        policy.worked(now_s, 0.009, 10)
        assert not policy.due(now_s, drained=True)
    assert policy.due(10.201, drained=False)


def test_what_the_clock_asked_for_is_committed_when_the_input_runs_dry(policy):
    """However busy the thread is; what comes after it is as patient as ever."""
    policy.worked(10.01, 0.01, 10)
    policy.worked(10.02, 0.01, 10, is_urgent=True)
    policy.worked(10.03, 0.01, 10)
    assert not policy.due(10.03, drained=False)
    assert policy.due(10.03, drained=True)
    policy.committed(10.03)
    policy.worked(10.04, 0.01, 10)
    assert not policy.due(10.04, drained=True)


def test_what_the_clock_asks_for_again_and_again_does_not_have_a_commit_each_time(policy):
    """Every millisecond, of a thread that has time for it: a commit at each spacing, and none later than that."""
    began_ms, commits_ms = 10_000, []
    for now_ms in range(began_ms, began_ms + 1_000):
        policy.worked(now_ms / 1000, 0.0001, 1, is_urgent=True)
        if policy.due(now_ms / 1000, drained=True):
            policy.committed(now_ms / 1000)
            commits_ms.append(now_ms)
    assert commits_ms[0] == began_ms
    gaps_ms = {after - before for before, after in pairwise(commits_ms)}
    assert gaps_ms <= {SPACING_S * 1000, SPACING_S * 1000 + 1}


def test_a_thread_without_input_sleeps_no_longer_than_until_such_a_commit_is_due(policy):
    """And as long as it likes where nothing is urgent."""
    assert policy.rest_s(10.0) == math.inf
    policy.worked(10.0, 0.001, 1, is_urgent=True)
    assert policy.rest_s(10.0) == 0
    policy.committed(10.0)
    assert policy.rest_s(10.0) == math.inf
    policy.worked(10.01, 0.001, 1, is_urgent=True)
    assert policy.rest_s(10.01) == pytest.approx(SPACING_S - 0.01)
    assert policy.due(10.01 + policy.rest_s(10.01), drained=True)


def test_what_came_to_nothing_keeps_nobody_waiting(policy):
    """Work that there was nothing to commit of, or that was rolled back, is no commit to keep away from."""
    policy.committed(9.0)
    policy.worked(10.0, 0.001, 1)
    policy.emptied()
    policy.worked(10.001, 0.001, 1, is_urgent=True)
    assert policy.due(10.001, drained=True)


def test_the_spacing_does_not_outlast_the_interval():
    """A commit interval that was set shorter than it is kept."""
    policy = CommitPolicy(interval_s=SPACING_S / 5, records_max=1000)
    policy.committed(10.0)
    policy.worked(10.001, 0.001, 1, is_urgent=True)
    assert not policy.due(10.001, drained=True)
    assert policy.rest_s(10.001) < SPACING_S / 5
    assert policy.due(10.001 + policy.rest_s(10.001), drained=True)


def test_the_interval_begins_with_the_first_work(policy):
    """Not with the last commit: what comes after a pause has its whole interval."""
    policy.worked(50.1, 0.1, 1)
    assert not policy.due(50.19, drained=False)
    assert policy.due(50.2, drained=False)


def test_many_records_are_enough(policy):
    """A transaction does not grow beyond what was set, however fast they come."""
    policy.worked(10.0, 0.001, 999)
    assert not policy.due(10.0, drained=False)
    policy.worked(10.0, 0.001, 1)
    assert policy.due(10.0, drained=False)


def test_after_a_commit_it_begins_anew(policy):
    """Neither time nor records count on."""
    policy.worked(10.0, 0.1, 1000)
    policy.committed(10.0)
    assert not policy.due(99.0, drained=True)
    policy.worked(99.001, 0.001, 1)
    assert not policy.due(99.001, drained=False)
    assert policy.due(99.01, drained=True)


def test_work_without_records_is_committed_too(policy):
    """A punctuation that forwarded something waits no longer than records do."""
    policy.worked(10.0, 0.0, 0)
    assert policy.due(10.0, drained=True)
