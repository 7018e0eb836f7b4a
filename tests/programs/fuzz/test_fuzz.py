"""A short run of `make program NAME=fuzz`: the generator, the worker and the ledger, with a seed that is printed."""

import json
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import TopicConfig
from processor.record import Headers, Record
from processor.testing import ProcessorTestDriver
from tests.programs.fuzz.ledger import Ledger
from tests.programs.fuzz.rubbish import commands
from tests.programs.fuzz.run import Plan, run


@pytest.mark.broker
@pytest.mark.parametrize("records", [8_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_every_record_of_a_rubbish_feed_is_accounted_for(bootstrap, tmp_path, unique, random_seed, records):
    """Merged, rejected with a reason, duplicate or nothing to do: nothing else, nothing twice, and no crash."""
    outcome = run(Plan(random_seed, records=records), bootstrap, tmp_path, unique, print)
    assert outcome.wrong == []
    assert outcome.exit_code == 0
    assert outcome.inputs >= records
    assert outcome.fates["merged"] > records // 4
    assert outcome.fates["expired by the clock"] > 0
    assert outcome.fates["asked for acks"] > records // 40
    assert outcome.fates["with a header name that is not UTF-8"] > records // 100
    assert not any("the broker took" in fate for fate in outcome.fates)


def test_the_feed_of_a_seed_is_always_the_same():
    """The generator repeats its records for the same seed, so that a failure can be reproduced."""
    assert list(commands(7, 500)) == list(commands(7, 500))


def test_a_record_without_a_trace_is_reported():
    """The ledger names the place of an input record that must leave a trace and has none."""
    ledger = Ledger(inputs={"t.publish/0/1": "must", "t.publish/0/2": "rekeyed"})
    ledger.close({"rekeyed": 1})
    assert ledger.wrong == ["1 input records left no trace, such as t.publish/0/1"]


def test_an_unreadable_header_name_without_its_letter_is_reported():
    """Such a record has to be rejected for its header, or because its value is too long."""
    ledger = Ledger(_unreadable={"t.publish/0/1", "t.publish/0/2"}, _rejected={"t.publish/0/2": "bad_header"})
    ledger.close({})
    assert ledger.wrong == ["t.publish/0/1: a header name is not UTF-8, and the record was rejected as None"]


class Read(NamedTuple):
    """A record in the form in which a consumer returns it."""

    name: str
    record: Record

    def topic(self) -> str:
        """The topic."""
        return self.name

    def partition(self) -> int:
        """The only partition."""
        return 0

    def offset(self) -> int:
        """The offset."""
        return self.record.offset

    def key(self) -> bytes | None:
        """The Kafka key."""
        return self.record.key

    def value(self) -> bytes | None:
        """The value."""
        return self.record.value

    def headers(self) -> Headers | None:
        """The headers."""
        return self.record.headers

    def timestamp(self) -> tuple[int, int]:
        """The timestamp."""
        return 1, self.record.timestamp_ms


Topics = dict[str, list[Record]]
SEED = 7


@pytest.fixture(scope="module")
def topics() -> tuple[Topics, Counter[str]]:
    """The records of every topic after some thousand commands, and the counts of the processor."""
    topic = TopicConfig(source_header=True, dlq_max_ratio=1)
    driver = ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic, behind_ms=0)
    for number, (key, value, headers) in enumerate(commands(SEED, 6_000, keys=50)):
        driver.pipe_input(key, value, headers)
        if number % 100 == 0:
            driver.advance_time(20)
            driver.commit()
    driver.commit()
    driver.commit()
    roles = {role: driver.read_output(role) for role in ("delta", "dlq", "ack", "sow")}
    return {"publish": driver.input, **roles}, driver.events


def wrong(topics: Topics, counted: Counter[str]) -> list[str]:
    """The discrepancies that the ledger reports."""
    ledger = Ledger()
    takers: dict[str, Callable[..., None]] = {
        "publish": ledger.take_input,
        "delta": ledger.take_delta,
        "dlq": ledger.take_dlq,
        "ack": ledger.take_ack,
        "sow": ledger.take_sow,
    }
    for role, take in takers.items():
        for record in topics[role]:
            take(Read(f"orders.{role}", record))
    ledger.close(counted)
    assert ledger.fates["merged"] > 1000
    assert ledger.fates["expired by the clock"] > 0
    return ledger.wrong


def test_rubbish_without_a_broker_adds_up(topics):
    """The processor alone, on a simulated clock, accounts for every record."""
    assert wrong(*topics) == []


def _named(record: Record) -> bool:
    return b"cmd-" in (record.value or b"")


def _updates(record: Record) -> bool:
    return bool(record.value) and len(json.loads(record.value)) > 1 and "kind" not in dict(record.headers or ())


@pytest.mark.parametrize(("role", "which", "complaint"), [
    ("delta", _updates, "left no trace"),
    ("delta", lambda record: (b"kind", b"expire") not in (record.headers or ()), "left no trace"),
    ("dlq", lambda record: b"sequence" not in str(record.headers).encode(), "left no trace"),
    ("ack", _named, "are missing"),
])  # fmt: skip
def test_a_record_that_is_lost_is_told(topics, role, which, complaint):
    """The ledger reports an output with one record removed."""
    records, counted = topics
    places = [place for place, record in enumerate(records[role]) if which(record)]
    place = places[len(places) // 2]
    less = records[role][:place] + records[role][place + 1 :]
    problems = wrong(records | {role: less}, counted)
    assert any(complaint in problem for problem in problems), problems


def test_a_key_missing_from_the_sow_is_reported(topics):
    """The ledger reports a record missing from SOW whose deltas are there."""
    records, counted = topics
    key = next(record.key for record in reversed(records["sow"]) if record.value is not None)
    less = [record for record in records["sow"] if record.key != key]
    assert any("delta replay is not SOW" in problem for problem in wrong(records | {"sow": less}, counted))


def test_lost_conflated_acks_are_reported(topics):
    """The ledger reports the acks that are missing when conflated acks were lost."""
    records, counted = topics
    alone = [ack for ack in records["ack"] if b"command_id" in (ack.value or b"")]
    assert len(alone) < len(records["ack"])
    assert any("{'persisted': 1} are missing" in problem for problem in wrong(records | {"ack": alone}, counted))


@pytest.mark.parametrize(("role", "complaint"), [("delta", "twice"), ("dlq", "twice"), ("ack", "too many")])
def test_a_record_that_comes_twice_is_told(topics, role, complaint):
    """The ledger reports an output with one record repeated."""
    records, counted = topics
    places = [place for place, record in enumerate(records[role]) if role != "ack" or _named(record)]
    place = places[len(places) // 2]
    more = [*records[role][: place + 1], *records[role][place:]]
    assert any(complaint in problem for problem in wrong(records | {role: more}, counted))


@pytest.mark.parametrize("both", [False, True])
def test_a_wrong_value_is_reported(topics, both):
    """The ledger reports a wrong value on the delta topic alone, and also one on which SOW and delta agree."""
    records, counted = topics
    place = max(place for place, record in enumerate(records["delta"]) if _updates(record))
    changed = dict(records)
    for role in ("delta", "sow") if both else ("delta",):
        record = records[role][place]
        value = json.dumps(json.loads(record.value or b"") | {"zz": 1}).encode()
        changed[role] = [*records[role][:place], record._replace(value=value), *records[role][place + 1 :]]
    assert any(" gave " in problem for problem in wrong(changed, counted))
