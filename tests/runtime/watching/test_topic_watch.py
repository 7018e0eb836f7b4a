"""When a change of a topic is believed."""

from __future__ import annotations

from processor.config.kafka_names import KafkaNames
from processor.runtime.watching.topic_watch import _LOOKS, Doubts
from processor.topics import Problem, recreated

GONE = Problem("refuse", "orders.publish", "was deleted", "")
REMADE = recreated(KafkaNames(), "orders", "sow")


def test_a_broker_that_takes_a_while_to_know_its_topics_is_not_believed():
    """It may tell the same look after look, and what it tells no more at last never was."""
    doubts = Doubts()
    for _ in range(_LOOKS - 1):
        assert doubts.looked([GONE, REMADE]) == []
    assert doubts.looked([REMADE]) == [REMADE], "of this one all looks agree"
    for _ in range(_LOOKS - 1):
        assert doubts.looked([GONE]) == [], "counted from the start again"
    assert doubts.looked([GONE]) == [GONE]


def test_after_a_silence_the_count_begins_again():
    """Whoever was silent may have been starting: what it told before says nothing of what it tells now."""
    doubts = Doubts()
    for _ in range(_LOOKS - 1):
        doubts.looked([GONE])
    assert doubts.looked([]) == []
    assert doubts.looked([GONE]) == []
