"""What is asked of a cluster about topics that have just been made, or are not there."""

from __future__ import annotations

import threading
import time

import pytest

from processor.errors import Stop
from processor.kafka.admin import Admin
from processor.topics import TopicSpec

pytestmark = pytest.mark.broker


def test_a_topic_that_is_being_made_is_waited_for(bootstrap: str, unique: str) -> None:
    """To the client one without leaders is one that is not there."""
    admin, topic = Admin({"bootstrap.servers": bootstrap}), f"{unique}.sow"
    later = threading.Timer(0.3, admin.create, [[TopicSpec(topic, "sow", 2, {})]])
    later.start()
    try:
        assert admin.end_offsets(topic, [0, 1]) == {0: 0, 1: 0}
    finally:
        later.join()
        admin.delete([topic])


def test_one_that_is_not_there_is_told_soon_and_not_made(bootstrap: str, unique: str) -> None:
    """Whoever made a mistake in a name does not wait long."""
    admin = Admin({"bootstrap.servers": bootstrap})
    began_s = time.monotonic()
    for _ in range(2):
        with pytest.raises(Stop, match=f"asking for the ends of {unique}.sow: .*leader"):
            admin.end_offsets(f"{unique}.sow", [0])
    assert time.monotonic() - began_s < 10
