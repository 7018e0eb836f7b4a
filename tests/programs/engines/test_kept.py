"""The comparison of engines reports every difference, and none between equal outputs."""

from __future__ import annotations

import re
import uuid
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.record import Record
from processor.testing import ProcessorTestDriver
from processor.wire.headers import Name
from tests.programs.engines.commands import KINDS, Commands
from tests.programs.engines.kept import PARTITIONS, Kept, differences, kept

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.broker

_SEED = 20261122
_ROLES = ("sow", "delta", "dlq")

Family = dict[str, list[Record]]
"""The records that an engine wrote, by role, in order."""


@pytest.fixture(scope="module")
def merged() -> Family:
    """The outputs of a merge worker for a short history."""
    commands = Commands("set", _SEED, 40)
    with closing(ProcessorTestDriver(DeltaMerge, TopicConfig(**KINDS["set"]), name="history")) as driver:
        for key, value, headers in commands.take(2_000):
            driver.pipe_input(key, value, headers)
        driver.commit()
        return {role: driver.read_output(role) for role in _ROLES}


@pytest.fixture(scope="module")
def right(bootstrap: str, merged: Family) -> Kept:
    """The outputs of an engine without fault."""
    return _write(bootstrap, f"t{uuid.uuid4().hex[:8]}", merged)


def _write(bootstrap: str, name: str, family: Family) -> Kept:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(f"{name}.{role}", PARTITIONS, 1) for role in _ROLES]
    for future in admin.create_topics(topics).values():
        future.result(30)
    # Idempotent, as a batch that is sent again would overtake another one.
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "enable.idempotence": True})
    for role, records in family.items():
        for record in records:
            producer.produce(f"{name}.{role}", record.value, record.key, headers=record.headers)
    assert producer.flush(30) == 0
    return kept(bootstrap, name, "set")


def _without(role: str, number: int) -> Callable[[Family], None]:
    def harm(family: Family) -> None:
        del family[role][number]

    return harm


def _changed(role: str, change: Callable[[Record], Record]) -> Callable[[Family], None]:
    """Change the last record of a role that has a value, and is not the only one of its key."""

    def harm(family: Family) -> None:
        number = max(at for at, record in enumerate(family[role]) if record.value)
        family[role][number] = change(family[role][number])

    return harm


def _header(name: str, value: bytes | None) -> Callable[[Record], Record]:
    def change(record: Record) -> Record:
        kept_headers = [one for one in record.headers or [] if one[0] != name]
        return record._replace(headers=kept_headers if value is None else [*kept_headers, (name, value)])

    return change


def _swapped(family: Family) -> None:
    """Swap two deltas of one key."""
    deltas = family["delta"]
    last = len(deltas) - 1
    before = max(at for at in range(last) if deltas[at].key == deltas[last].key)
    deltas[before], deltas[last] = deltas[last], deltas[before]


def _drop_key(family: Family) -> None:
    key = next(record.key for record in reversed(family["sow"]) if record.value)
    family["sow"] = [record for record in family["sow"] if record.key != key]


_HARMS: dict[str, tuple[Callable[[Family], None], str]] = {
    "a record is missing": (_drop_key, "sow"),
    "a value is another": (_changed("sow", lambda record: record._replace(value=record.value + b" ")), "sow"),
    "a version is another": (_changed("sow", _header(Name.VERSION, b"999")), "sow"),
    "a delta is missing": (_without("delta", -1), "deltas"),
    "a delta comes twice": (lambda family: family["delta"].append(family["delta"][-1]), "deltas"),
    "two deltas are swapped": (_swapped, "deltas"),
    "a delta has no correlation": (_changed("delta", _header("correlation_id", b"other")), "deltas"),
    "a delta says another kind": (_changed("delta", _header(Name.KIND, b"conflated")), "deltas"),
    "a dead letter is missing": (_without("dlq", 0), "letters"),
    "a dead letter has another reason": (_changed("dlq", _header("dlq_reason", b"other")), "letters"),
}


def test_equal_outputs_have_no_difference(bootstrap, unique, merged, right) -> None:
    """Equal outputs have no difference, and replayed deltas give the SOW records."""
    assert differences("twice", right, _write(bootstrap, unique, merged)) == []
    assert right.wrong == []
    assert right.sow
    assert right.letters
    assert right.kinds["delete"]


@pytest.mark.parametrize("harm", _HARMS)
def test_a_damaged_record_is_reported(bootstrap, unique, merged, right, harm) -> None:
    """The comparison reports each damaged record, with its place."""
    doctor, where = _HARMS[harm]
    doctored = {role: list(records) for role, records in merged.items()}
    doctor(doctored)
    lines = differences("doctored", right, _write(bootstrap, unique, doctored))
    print("\n".join(lines))
    # A dead letter that is another is two: one that is missing, one that is too many.
    assert any(re.match(f"doctored: {where}: [12] of", line) for line in lines)


def test_deltas_that_do_not_lead_to_the_records_are_reported(bootstrap, unique, merged) -> None:
    """Replaying detects deltas that do not lead to the records, where both engines are wrong alike."""
    doctored = {role: list(records) for role, records in merged.items()}
    _changed("delta", lambda record: record._replace(value=b'{"id":"nobody","qty":-5}'))(doctored)
    assert _write(bootstrap, unique, doctored).wrong
