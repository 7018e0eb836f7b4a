"""How much longer Kafka keeps what is to be processed next."""

import math

from processor.runtime import input_room

NOW_MS = 1_000_000_000


def room_s(topic: str, lag: int, as_of_ms: int) -> dict[int, float]:
    """The room of one partition."""
    return input_room.of(topic, {0: lag}, {0: as_of_ms}, NOW_MS)


def test_a_partition_that_lags_has_what_the_age_of_its_last_record_leaves():
    """Kept for an hour, ten minutes behind: fifty minutes; two hours behind: an hour too late."""
    input_room.tell("hour", 3_600_000)
    assert room_s("hour", 5, NOW_MS - 600_000) == {0: 3000.0}
    assert room_s("hour", 5, NOW_MS - 7_200_000) == {0: -3600.0}
    assert room_s("hour", 5, NOW_MS + 600_000) == {0: 3600.0}


def test_a_partition_that_waits_for_records_has_all_of_it():
    """However old the last record was: the next one is yet to come."""
    input_room.tell("hour", 3_600_000)
    assert room_s("hour", 0, 1) == {0: 3600.0}


def test_a_topic_that_keeps_everything_has_room_without_end():
    """Prometheus writes it as +Inf."""
    input_room.tell("for ever", None)
    assert room_s("for ever", 5, 1) == {0: math.inf}


def test_what_is_not_known_is_not_told():
    """Before the first look at the topic, and before the first record of a partition that lags."""
    input_room.tell("hour", 3_600_000)
    assert room_s("never looked at", 0, 0) == {}
    assert room_s("hour", 5, 0) == {}
    assert room_s("hour", 0, 0) == {0: 3600.0}
