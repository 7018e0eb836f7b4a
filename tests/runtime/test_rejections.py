"""Tests of rejected records: the limit and the message of its hold, and the log lines."""

from __future__ import annotations

import random

import pytest
from structlog.testing import capture_logs

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.errors import PartitionHeld
from processor.hosting.pipeline import Pipeline
from processor.record import Record
from processor.runtime.rejections import RejectionLog, RejectLimit
from processor.testing import ProcessorTestDriver
from tests.runtime.test_task import Script, Scripted


def a_limit(ratio: float, window: int) -> RejectLimit:
    """Create the limit of a partition."""
    topic = TopicConfig(dlq_max_ratio=ratio, dlq_window_records=window)
    return RejectLimit(Pipeline.of(Scripted, Script(), name="orders", topic=topic), 3)


def records(first: int, count: int) -> list[Record]:
    """Create input records whose offsets have gaps, as transaction markers leave them."""
    return [Record(b"k", b"1", None, 3 * offset, 0) for offset in range(first, first + count)]


def stops_at(verdicts: list[bool], batches: list[int], *, ratio: float, window: int) -> int | None:
    """The batch, counted in records, at which the limit stops; None if it does not. True is a rejected record."""
    limit, first = a_limit(ratio, window), 0
    for size in batches:
        given = records(first, size)
        for record, verdict in zip(given, verdicts[first : first + size], strict=True):
            if verdict:
                limit.rejected(record, "undecodable", "no")
        first += size
        try:
            limit.took(given)
        except PartitionHeld:
            return first
    return None


def cut(rng: random.Random, count: int) -> list[int]:
    """Split a number into random summands."""
    sizes = []
    while count:
        sizes.append(rng.randint(1, count))
        count -= sizes[-1]
    return sizes


@pytest.mark.parametrize("seed", range(20))
def test_windows_do_not_depend_on_batches(seed: int):
    """The limit stops with the batch that fills the first window above the ratio, or never."""
    rng = random.Random(seed)
    for _ in range(10):
        batches_and_windows(rng)


def batches_and_windows(rng: random.Random) -> None:
    """Compare a random limit with a count of its windows."""
    window, ratio = rng.randint(1, 12), rng.choice([0.0, 0.5, 0.9, 1.0])
    share = rng.random()
    verdicts = [rng.random() < share for _ in range(rng.randint(1, 60))]
    full = range(0, len(verdicts) - window + 1, window)
    bad = next((begin + window for begin in full if sum(verdicts[begin : begin + window]) > ratio * window), None)
    batches = cut(rng, len(verdicts))
    ends = [sum(batches[: n + 1]) for n in range(len(batches))]
    expected = None if bad is None else next(end for end in ends if end >= bad)
    assert stops_at(verdicts, batches, ratio=ratio, window=window) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_late_rejection_counts_in_the_window_of_its_record(seed: int):
    """A processor that lets records wait may reject them late, repeatedly and many at once."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    window, count = rng.randint(1, 12), 60
    limit = a_limit(0.5, window)
    given = records(0, count)
    bad = [record for record in given if rng.random() < 0.4]
    full = [given[begin : begin + window] for begin in range(0, count - window + 1, window)]
    expected = any(len([record for record in part if record in bad]) > window / 2 for part in full)
    try:
        for record in given:
            limit.took([record])
        for record in rng.sample(bad, len(bad)) + bad:
            limit.rejected(record, "undecodable", "no")
        limit.took(given[-1:])
    except PartitionHeld:
        assert expected
    else:
        assert not expected


def test_windows_whose_input_is_committed_are_forgotten():
    """No record of a committed window is rejected any more, so the memory is bounded by waiting records."""
    limit = a_limit(0.5, 2)
    given = records(0, 100)
    for record in given:
        limit.took([record])
    assert len(limit._full) == 50
    limit.committed(given[90].offset)
    limit.took(given[-1:])
    assert len(limit._full) == 5


def test_a_record_counts_once_although_it_is_repeated():
    """Rollbacks repeat records in other batches, which must not fill a window twice."""
    limit = a_limit(0.5, 10)
    for first, last in [(0, 4), (0, 4), (2, 6), (0, 6), (4, 9)]:
        given = records(first, last - first)
        for record in given[::2]:
            limit.rejected(record, "undecodable", "no")
        limit.took(given)
    assert (limit._seen, len(limit._open.reasons)) == (9, 5)


def test_rejections_of_a_failed_batch_are_forgotten():
    """A record that was rejected in a failed batch may be accepted when it is repeated."""
    limit = a_limit(0.0, 2)
    given = records(0, 2)
    limit.rejected(given[0], "undecodable", "no")
    limit.rewound()
    limit.took(given)


def test_the_hold_describes_place_count_reason_and_remedy():
    """The message has the most frequent reason of the window with its first example, cut to a limited length."""
    limit = a_limit(0.5, 4)
    given = records(0, 4)
    limit.rejected(given[0], "key_mismatch", "no")
    for record in given[1:3]:
        limit.rejected(record, "undecodable", f"at byte {record.offset} of {'x' * 10_000}")
    with pytest.raises(PartitionHeld) as stopped:
        limit.took(given)
    text = str(stopped.value)
    assert text.startswith("orders.publish partition 3: 3 of 4 records in a row were rejected, 2 as undecodable")
    assert "such as offset 3: at byte 3 of xxx" in text
    assert "dlq_max_ratio (now 0.5; 1 holds nothing)" in text
    assert "sowstream dlq list orders" in text
    assert len(text) < 1_200


def test_the_message_names_the_setting_of_the_topic():
    """The name of the setting can be copied from the message."""
    topic = TopicConfig(dlq_window_records=10)
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
    with pytest.raises(PartitionHeld, match=r"raise topics\.orders\.dlq_max_ratio \(now 0\.9; 1 holds nothing\)"):
        driver.pipe_batch([("k", b"rubbish", None)] * 10)
    assert driver.read_output("dlq") == []


def test_accepted_rejections_count_no_more():
    """Accepted records do not count when they are repeated; later rejections do."""
    limit = a_limit(0.5, 2)

    def give(given: list[Record]) -> None:
        for record in given:
            limit.rejected(record, "undecodable", "no")
        limit.took(given)

    with pytest.raises(PartitionHeld):
        give(records(0, 3))
    limit.rewound()
    limit.let_pass()
    give(records(0, 3))
    with pytest.raises(PartitionHeld, match="2 of 2 records"):
        give(records(3, 2))


def test_skipped_records_do_not_count():
    """Records that an operator ordered to skip are no rejections."""
    limit = a_limit(0.0, 2)
    given = records(0, 2)
    for record in given:
        limit.rejected(record, "skipped", "by order")
    limit.took(given)


def test_with_ratio_1_everything_may_be_rejected():
    """With the ratio 1 the worker goes on, and every record becomes a dead letter."""
    topic = TopicConfig(dlq_window_records=10, dlq_max_ratio=1)
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic)
    driver.pipe_batch([("k", b"rubbish", None)] * 100)
    driver.commit()
    assert len(driver.read_output("dlq")) == 100


@pytest.mark.parametrize(("failing", "stops"), [(9, False), (10, True)])
def test_records_that_make_the_processor_raise_count_as_any_others(failing: int, stops: bool):
    """A record on which the processor raises is processed several times and counts once."""
    topic = TopicConfig(dlq_window_records=10)
    values = [b"%d" % number for number in range(10)]
    script = Script(failing=frozenset(values[:failing]))
    driver = ProcessorTestDriver(Scripted, script, name="visits", topic=topic)
    batch = [("k", value, None) for value in values]
    if not stops:
        driver.pipe_batch(batch)
        driver.commit()
        assert len(driver.read_output("dlq")) == failing
        return
    with pytest.raises(
        PartitionHeld, match=r"10 of 10 records in a row were rejected, 10 as plugin_failed, such as offset 0"
    ):
        driver.pipe_batch(batch)


class Clock:
    """A clock that is set by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s


def test_the_first_of_each_reason_is_logged_and_the_others_are_counted():
    """Each reason has one line a minute with offset and detail, then one with the number of further records."""
    clock = Clock()
    rejections = RejectionLog("orders.publish", clock)
    with capture_logs() as lines:
        for offset in range(3):
            rejections.add(2, offset, "undecodable", f"not JSON at {offset}")
        rejections.add(1, 9, "bad_header", "header 'Command' is spelled 'command'")
        clock.now_s = 59.9
        rejections.flush()
        assert [(line["reason"], line["partition"], line["offset"], line["detail"]) for line in lines] == [
            ("undecodable", 2, 0, "not JSON at 0"),
            ("bad_header", 1, 9, "header 'Command' is spelled 'command'"),
        ]
        assert {line["topic"] for line in lines} == {"orders.publish"}
        clock.now_s = 60.0
        rejections.flush()
        assert [(line["reason"], line["count"]) for line in lines[2:]] == [("undecodable", 2)]
        rejections.add(2, 3, "undecodable", "not JSON at 3")
        assert lines[-1]["detail"] == "not JSON at 3"


def test_nothing_is_logged_twice_for_a_single_rejection():
    """A single rejection leaves one log line."""
    clock = Clock()
    rejections = RejectionLog("orders.publish", clock)
    with capture_logs() as lines:
        rejections.add(0, 0, "too_deep", "129 levels")
        clock.now_s = 1000.0
        rejections.flush()
    assert len(lines) == 1
