"""Tests of transactions: counts and times of commits, the pause after failures, and the check of the clock."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.errors import ProcessorFailed, ProducerLost, TransactionAborted
from processor.hosting.commit_metadata import CommitMetadata
from processor.hosting.pipeline import Pipeline
from processor.kafka.partitioner import partition_for
from processor.record import Outgoing
from processor.runtime.loop.committer import TransactionCommitter
from processor.runtime.loop.transactions import (
    BEHIND_MAX_S,
    SPACING_S,
    ClockCheck,
    CommitPolicy,
    Transactions,
    back_off_s,
)
from processor.runtime.task import Counts, Prepared


class KeepingProducer:
    """A producer that keeps the committed offsets."""

    offsets: dict[int, int]

    def begin_commit(self, _topic: str, offsets: dict[int, int], _group: object, **_: object) -> None:
        """Keep the offsets."""
        self.offsets = offsets

    def finish_commit(self) -> float:
        """Finish at once."""
        return 0.0


class Member:
    """A member of the group."""

    topic = "orders.publish"

    def group_metadata(self) -> str:
        """The proof of the membership."""
        return "member"


class KeepingMetrics:
    """Metrics that keep the counted events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def committed(self, _seconds: float) -> None:
        """Count a commit."""

    def counts(self, counts: Counts) -> None:
        """Keep the counts of a task."""
        self.events += counts.events


class OneTask:
    """A task with one event in a transaction."""

    marks = None

    def __init__(self, partition: int, error: Exception | None = None) -> None:
        self.partition, self._error = partition, error

    def prepare(self) -> Prepared:
        """Prepare the event and a position."""
        return Prepared(self.partition + 10, CommitMetadata(None, ""), Counts({f"event {self.partition}": 1}, {}, {}))

    def committed(self) -> None:
        """Commit, or raise for a missing delivery report."""
        if self._error is not None:
            raise self._error


def test_a_commit_is_counted_even_if_a_state_is_read_back():
    """The events of all tasks are counted, as their records are not repeated."""
    producer, metrics = KeepingProducer(), KeepingMetrics()
    pipeline = Pipeline.of(DeltaMerge, TopicConfig(), name="orders", topic=TopicConfig())
    transactions = Transactions(pipeline, TransactionCommitter(cast("Any", producer)), cast("Any", metrics))
    tasks = [OneTask(0), OneTask(1, TransactionAborted("committed without a delivery report")), OneTask(2)]
    transactions.begin_commit(cast("Any", tasks), cast("Any", Member()), None)
    with pytest.raises(TransactionAborted, match="delivery report"):
        transactions.finish()
    assert producer.offsets == {0: 10, 1: 11, 2: 12}
    assert metrics.events == ["event 0", "event 1", "event 2"]
    assert not transactions.finish(), "nothing is under way any more"


class SendingProducer:
    """A producer that keeps what was sent: topic, partition and keys."""

    is_open = True

    def __init__(self) -> None:
        self.sent: list[tuple[str, int | None, list[bytes | None]]] = []

    def send(self, topic: str, partition: int | None, records: list[Outgoing]) -> int:
        """Keep a batch."""
        self.sent.append((topic, partition, [key for key, _, _ in records]))
        return 0


def test_a_repartitioned_record_goes_to_the_home_of_its_key_by_the_settings():
    """Not by the partitions that the topic has: where it has grown, workers would send a record back and forth."""
    keys = [b"%d" % number for number in range(20)]

    class Task:
        partition = 1

        def take_outputs(self) -> dict[str, list[Outgoing]]:
            return {"publish": [(key, b"", []) for key in keys], "ack": [(b"a", b"", [])]}

    producer = SendingProducer()
    topic = TopicConfig(partitions=3)
    pipeline = Pipeline.of(DeltaMerge, topic, name="orders", topic=topic)
    metrics = type("Metrics", (), {"emitted": lambda *_: None})()
    Transactions(pipeline, TransactionCommitter(cast("Any", producer)), metrics).send(cast("Any", Task()))
    assert ("orders.ack", 1, [b"a"]) in producer.sent
    homes = {key: partition for topic, partition, each in producer.sent for key in each if topic == "orders.publish"}
    assert homes == {key: partition_for(key, 3) for key in keys}


def test_the_pause_grows_with_each_transaction_that_fails_in_a_row():
    """There is no pause after the first failure, and never more than two seconds."""
    for error in (TransactionAborted("x"), ProducerLost("x")):
        assert [back_off_s(error, failures) for failures in (0, 1, 2, 3, 4, 99)] == [0.0, 0.1, 0.5, 2.0, 2.0, 2.0]


def test_there_is_no_pause_after_an_error_of_a_processor():
    """With a pause each, a thousand failing records in a row would take half an hour to reach the reject limit."""
    assert [back_off_s(ProcessorFailed("x"), failures) for failures in (0, 3, 1000)] == [0.0, 0.0, 0.0]


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


NOW_MS = 1_800_000_000_000
LIMIT_MS = int(BEHIND_MAX_S * 1000)


def test_a_clock_that_is_days_behind_is_warned_of_once_a_minute() -> None:
    """The warning names the topic and the difference, and comes again after a minute."""
    seconds = [5.0]
    check = ClockCheck("orders.publish", lambda: seconds[0])
    with capture_logs() as logs:
        for seconds[0] in (5.0, 30.0, 64.9, 65.0):
            check.compare(NOW_MS + 864_000_000, NOW_MS)
    assert [(one["topic"], one["seconds_ahead"]) for one in logs] == [("orders.publish", 864_000)] * 2


@pytest.mark.parametrize("timestamp_ms", [0, NOW_MS - 864_000_000, NOW_MS, NOW_MS + LIMIT_MS])
def test_records_of_the_past_and_of_the_next_hour_are_in_order(timestamp_ms: int) -> None:
    """Old input is normal, and brokers take records of up to an hour ahead."""
    with capture_logs() as logs:
        ClockCheck("orders.publish").compare(timestamp_ms, NOW_MS)
    assert logs == []


_ROOT = Path(__file__).parents[3]
_SETTING = "at_least_once"


def test_few_files_know_which_guarantee_runs():
    """Only the setting, its choice and operators' commands name a guarantee: the loop and the tasks do not ask."""
    files = [file for folder in ("processor", "spark_integration") for file in (_ROOT / folder).rglob("*.py")]
    knowing = {str(file.relative_to(_ROOT)) for file in files if _SETTING in file.read_text()}
    in_runtime = {file for file in knowing if file.startswith(("processor/runtime", "processor/kafka"))}
    assert in_runtime == {"processor/runtime/worker/assembly.py"}
    assert len(knowing) <= 6, knowing
