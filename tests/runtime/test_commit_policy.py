"""When to commit: soon while little comes, seldom while much does, never without a reason."""

import pytest

from processor.runtime.commit_policy import CommitPolicy


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
    policy.committed()
    policy.worked(10.04, 0.01, 10)
    assert not policy.due(10.04, drained=True)


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
    policy.committed()
    assert not policy.due(99.0, drained=True)
    policy.worked(99.001, 0.001, 1)
    assert not policy.due(99.001, drained=False)
    assert policy.due(99.01, drained=True)


def test_work_without_records_is_committed_too(policy):
    """A punctuation that forwarded something waits no longer than records do."""
    policy.worked(10.0, 0.0, 0)
    assert policy.due(10.0, drained=True)
