"""The processes of a run share one broker."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from processor.errors import BrokerUnavailable
from tests.processes import SharedBroker, shared_bootstrap


@contextmanager
def shared(start):
    """A run whose broker is started by `start`; the doors at which its processes ask."""
    ended = []
    run = SharedBroker(SimpleNamespace(bootstrap="127.0.0.1:9", stop=lambda: ended.append(True)), start)
    try:
        yield run.door
    finally:
        run.stop()
    assert ended == [True]


def test_all_processes_have_one_broker_that_is_started_once():
    """Four processes that ask at once get the same address of a broker that was started once."""
    started = []
    with shared(started.append) as door, ThreadPoolExecutor(4) as processes:
        assert not started
        assert list(processes.map(shared_bootstrap, [door] * 4)) == ["127.0.0.1:9"] * 4
    assert len(started) == 1


def test_each_process_learns_why_the_broker_did_not_start():
    """The reason for which the broker did not start is the error of each question, and it is not started again."""
    tries = []

    def fail(broker):
        tries.append(broker)
        raise BrokerUnavailable("no Java")

    with shared(fail) as door:
        for _ in range(2):
            with pytest.raises(BrokerUnavailable, match="no Java"):
                shared_bootstrap(door)
    assert len(tries) == 1


def test_each_file_with_a_long_test_shows_it(hidden_long_files):
    """It names `mark.long`, or takes its markers from elsewhere: a run of long tests imports no other files."""
    assert hidden_long_files == set()
