"""A truncated dead letter: the full record goes back, as long as the input has it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from processor.tools.dlq import DeadLetterReplay, survey
from processor.tools.dlq.survey import LetterSelection

if TYPE_CHECKING:
    from tests.tools.dlq.conftest import Office

pytestmark = pytest.mark.broker

LARGE = json.dumps({"id": 1, "text": "a large record " * 1_500_000}).encode()
"""21 MiB that compress to a few KB."""


def _publish_large(office: Office) -> None:
    """Publish like a publisher with gzip and without a size limit of its own."""
    producer = Producer(
        {"bootstrap.servers": office.world.bootstrap, "compression.type": "gzip", "message.max.bytes": 64_000_000}
    )
    producer.produce(f"{office.name}.publish", LARGE, b"1", 0, headers={"trace": "it"})
    assert producer.flush(60) == 0


def _cut_letter(office: Office, offset: int, checksum: str | None = None) -> None:
    """Write a dead letter as a worker does."""
    source = f"{office.name}.publish/0/{offset}"
    sha256 = checksum or hashlib.sha256(LARGE).hexdigest()
    headers = {"dlq_reason": "too_large", "dlq_detail": "no", "source": source}
    cut = {"dlq_bytes": str(len(LARGE)), "dlq_sha256": sha256, "dlq_truncated": "true"}
    office.world.publish([(b"1", LARGE[:1000], headers | cut)], "dlq")


def test_a_truncated_letter_is_sent_in_full_or_waits(office: Office) -> None:
    """One record is still in the input, one was replaced, one is gone; the command reports the latter two."""
    _publish_large(office)
    _cut_letter(office, 0)
    _cut_letter(office, 0, "0" * 64)
    _cut_letter(office, 7)
    with DeadLetterReplay(office.config, office.name) as running:
        running.send(survey(running.waiting.letters(), LetterSelection()), LetterSelection())
        assert running.sent == 1
        assert len(running.kept) == 2
        assert "its checksum is not the letter's" in running.kept[0]
        assert "/0/7 is not there any more" in running.kept[1]
    first, again = office.world.read("publish")
    assert first.value == again.value == LARGE
    assert again.headers == {"trace": "it", "replay_of": f"{office.name}.publish/0/0"}
    assert [letter["dlq_bytes"] for letter in office.waiting()] == [len(LARGE)] * 2
    result = office.run("replay")
    assert result.returncode == 0
    assert "is not there any more" in result.stderr
    assert "0 dead letters" in result.stderr
    assert len(office.waiting()) == 2
