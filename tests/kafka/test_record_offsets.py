"""Records are told from transaction markers by reading a range of offsets on a real broker."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from processor.kafka.admin.admin import Admin
from processor.kafka.clients.record_offsets import RANGE_MAX, record_offsets
from processor.topics.family import TopicSpec, family_specs


@pytest.mark.broker
def test_markers_and_aborted_records_are_no_records(bootstrap: str, unique: str) -> None:
    """Of a range only committed records are returned: no markers, no aborted ones, none behind its end."""
    kafka = {"bootstrap.servers": bootstrap}
    [spec] = [spec for spec in family_specs(unique, ("publish",), partitions=2) if isinstance(spec, TopicSpec)]
    Admin(kafka).create([spec])
    producer = Producer({**kafka, "transactional.id": unique})
    producer.init_transactions(60)
    for is_committed in (True, False, True):
        producer.begin_transaction()
        for _ in range(2):
            producer.produce(spec.name, b"{}", b"k", 0)
        producer.flush(60)
        producer.commit_transaction(60) if is_committed else producer.abort_transaction(60)
    place, other = (spec.name, 0), (spec.name, 1)
    # Two records and a marker, two aborted ones and a marker, two records and a marker.
    assert record_offsets(kafka, unique, {place: (0, 9), other: (0, 0)}) == {place: [0, 1, 6, 7]}
    assert record_offsets(kafka, unique, {place: (1, 7)}) == {place: [1, 6]}
    assert record_offsets(kafka, unique, {place: (8, 9)}) == {place: []}
    assert record_offsets(kafka, unique, {place: (0, RANGE_MAX + 1)}) == {}
    assert record_offsets(kafka, unique, {("missing", 0): (0, 5), place: (8, 9)}) == {place: []}
