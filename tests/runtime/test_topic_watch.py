"""When a topic that is not found is believed to be gone."""

from __future__ import annotations

from processor.runtime.topic_watch import _LOOKS, Absences

NAMES = ("orders.publish", "orders.sow")


def test_a_broker_that_takes_a_while_to_know_its_topics_is_not_believed():
    """It may miss all of them, look after look, and a topic that it knows at last was never gone."""
    absences = Absences(NAMES)
    for _ in range(_LOOKS - 1):
        assert absences.looked([]) == set(NAMES)
    assert absences.looked(["orders.sow"]) == set(), "the other is believed to be gone"
    for _ in range(_LOOKS - 1):
        assert absences.looked(["orders.publish"]) == {"orders.sow"}, "counted from the start again"
    assert absences.looked(["orders.publish"]) == set()


def test_after_a_silence_the_count_begins_again():
    """Whoever was silent may have been starting: what was missed before says nothing of what it misses now."""
    absences = Absences(NAMES)
    for _ in range(_LOOKS - 1):
        absences.looked(["orders.publish"])
    assert absences.looked(None) == set()
    assert absences.looked(["orders.publish"]) == {"orders.sow"}
