"""Runs a row: one history through the product and through the model, compared after every step."""

from __future__ import annotations

import json
from pathlib import Path as File
from typing import Any, Final

from processor.builtin.conflate import Conflate
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.config import ConflatedConfig, QueueConfig, TopicConfig
from processor.record import Record
from processor.testing import ProcessorTestDriver
from tests.builtin.delta_merge.staged import StagedDriver
from tests.programs.array.history import Turn, history
from tests.programs.array.layout import Layout, layout_of
from tests.programs.array.pairs import Row
from tests.programs.array.problems import Problem, compared, headers_of, removed_of, without_stamps
from tests.programs.array.subscribing import Subscribing
from tests.programs.oracle.conflated import ConflatedTopic, Delivery, SowRecord
from tests.programs.oracle.filters import Compare
from tests.programs.oracle.formats import Format
from tests.programs.oracle.subscriber import Event
from tests.programs.oracle.topic import Input, SowTopic, Update
from tests.programs.oracle.values import same

INTERVAL_MS: Final = 1000
START_MS: Final = 4_000_000_000_000
"""The start of the product's clock; snapshots use the machine's clock, by which no record has expired then."""


def play(row: Row, seed: int, directory: File, turns: int = 10) -> list[Problem]:
    """Run the history of a row and a seed, and return all differences."""
    return _Play(row, directory).run([*history(layout_of(row), f"{seed}/{sorted(row.items())}", turns)])


class _Play:
    """One run."""

    def __init__(self, row: Row, directory: File) -> None:
        self.row = row
        self.layout = layout_of(row)
        self.model = SowTopic(self.layout.settings)
        self.problems: list[Problem] = []
        settings = self.layout.topic(directory)
        topic = TopicConfig.model_validate(settings)
        self.selection = Compare(self.layout.path("state"), "!=", "void") if row["queue"] == "filter" else None
        text = None if self.selection is None else self.selection.text
        queues = {} if row["queue"] == "none" else {"jobs": QueueConfig(underlying="orders", filter=text)}
        place = {"partition": self.model.settings.partition, "partitions": self.model.settings.partitions}
        self.driver = (
            StagedDriver(place, queues, **settings)
            if row["guarantee"] == "at_least_once"
            else ProcessorTestDriver(DeltaMerge, topic, name="orders", topic=topic, queues=queues, behind_ms=0, **place)
        )
        self.driver.now_ms = START_MS
        self.pending: list[Input] = []
        """Input of the open transaction."""
        self.seen = {"sow": 0, "delta": 0, "dlq": 0, "publish": 0, "ack": 0, "jobs.queue": 0}
        self.copy = None if row["conflation"] == "none" else _Copy(self.layout, topic, self.driver.now_ms)
        self.subscribing = Subscribing(self.layout, self.driver._codec)

    def run(self, turns: list[Turn]) -> list[Problem]:
        """All turns; the subscription begins in the middle."""
        try:
            for number, turn in enumerate(turns):
                if number == len(turns) // 2:
                    self.problems += self.subscribing.begin()
                self._turn(turn)
            self._advance(2 * INTERVAL_MS)
            self.problems += self.subscribing.end(self.driver.now_ms)
        except _Lost:
            pass
        self.driver.close()
        return self.problems

    def _turn(self, turn: Turn) -> None:
        for message in turn.messages:
            self._take(Input(message.key, message.value, message.headers, self._offset, self.driver.now_ms))
        self.driver.pipe_batch([(m.key, m.value, m.headers) for m in turn.messages])
        if turn.is_disturbed:
            self._disturb(turn)
        self._commit()
        self._advance(turn.advance_ms)

    @property
    def _offset(self) -> int:
        return len(self.driver.input) + len(self.pending)

    def _take(self, record: Input) -> None:
        self.pending.append(record)
        self.model.take(record, self.driver.now_ms)

    def _disturb(self, turn: Turn) -> None:
        """Roll back, or kill the worker; its input is delivered again."""
        match self.row["guarantee"]:
            case "aborts":
                self.driver.abort()
            case "crashes":
                self.driver.crash(keep_store=len(turn.messages) % 2 == 0)
            case "at_least_once":
                assert isinstance(self.driver, StagedDriver)
                if self.model.rekeyed:
                    return  # The driver drops what a dying worker sent to the input.
                stage = ("deltas", "sow", "acks")[len(turn.messages) % 3]
                self.driver.die(stage, turn.advance_ms / 2500, keep_store=turn.advance_ms > 0)
                return
            case _:
                return
        self.model.roll_back()
        for record in self.pending:
            self.model.take(record, self.driver.now_ms)

    def _advance(self, ms: int) -> None:
        self.driver.advance_time(ms)
        self.model.expire(self.driver.now_ms)
        if self.copy is not None:
            self._deliver(self.copy.advance(ms))
            if self.row["guarantee"] in ("crashes", "at_least_once"):
                self.copy.crash()
        self._commit()
        self.problems += self.subscribing.advance(self.driver.now_ms)

    def _commit(self) -> None:
        """Commit until no repartitioned record is left in the input."""
        while True:
            rekeyed = self.model.returning()
            self.driver.commit()
            self._compare()
            self.model.commit()
            self.pending = []
            if not rekeyed:
                return
            first = len(self.driver.input) - len(rekeyed)
            for number, record in enumerate(rekeyed):
                self.model.take(
                    record._replace(offset=first + number, timestamp_ms=self.driver.now_ms), self.driver.now_ms
                )

    def _compare(self) -> None:
        """Compare the records that the transaction wrote to the topics with those of the model."""
        sow, delta, letters = self._news("sow"), self._news("delta"), self._news("dlq")
        if self.row["guarantee"] == "at_least_once":
            delta, letters = _once(delta), _once(letters)
        forwarded = [(record.key, record.value) for record in self._news("publish")]
        if forwarded != [(record.key, record.value) for record in self.model.rekeyed]:
            self._note("forwarded", f"{forwarded}, not {self.model.rekeyed}")
        updates = self.model.updates
        found_places = sorted((headers_of(r)["source"].split("/")[2], headers_of(r)["dlq_reason"]) for r in letters)
        wanted_places = sorted((str(offset), reason) for offset, reason in self.model.rejections)
        if found_places != wanted_places:
            self._note("rejections", f"{found_places}, not {wanted_places}: {[headers_of(r) for r in letters]}")
        self._compare_conflicts()
        if self.row["queue"] != "none":
            self._compare_messages()
        if [r.key for r in _by_key(sow)] != sorted(update.key for update in updates):
            self._note("sow records", f"{[(r.key, r.value) for r in sow]}, not {[u[:4] for u in updates]}")
            raise _Lost
        if [r.key for r in _by_key(delta)] != [r.key for r in _by_key(sow)]:
            self._note("delta records", f"{[(r.key, r.value) for r in delta]}, not {[u[:4] for u in updates]}")
            raise _Lost
        ordered = sorted(updates, key=lambda update: update.key)
        for record, partial, update in zip(_by_key(sow), _by_key(delta), ordered, strict=True):
            self._compare_update(record, partial, update)
        self._pass_on(sow, updates)

    def _compare_conflicts(self) -> None:
        """Compare the versions in the acks of the conditional commands that were not applied."""
        acks = [json.loads(record.value or b"") for record in self._news("ack")]
        found = [ack["version"] for ack in acks if (ack.get("reason") or "").startswith("conflict: ")]
        wanted = [version for _, version in self.model.conflicts]
        if self.row["guarantee"] == "at_least_once":
            # Acks are sent last: a command that is answered again may meet the effects of later ones.
            found, wanted = [len(found) >= len(wanted)], [True]
        if found != wanted:
            self._note("conflicts", f"{found}, not {wanted}: {acks}")

    def _compare_messages(self) -> None:
        """Compare the messages of the queue: each update that matches, with the full record and its input record."""
        found = self._news("jobs.queue")
        if self.row["guarantee"] == "at_least_once":
            found = _once(found)
        settings = self.layout.settings
        wanted = [
            update
            for update in self.model.updates
            if update.record is not None and (self.selection is None or self.selection.matches(update.record))
        ]
        if [record.key for record in _by_key(found)] != sorted(update.key for update in wanted):
            self._note("messages", f"{[(r.key, r.value) for r in found]}, not {[u[:4] for u in wanted]}")
            return
        ordered = sorted(wanted, key=lambda update: update.key)
        for record, update in zip(_by_key(found), ordered, strict=True):
            source = {"source": f"orders.publish/{settings.partition}/{update.offset}"}
            self.problems += _compared_values(self.layout.format, "message", record, update.record)
            self.problems += compared("message", update.sow_headers | source, headers_of(record))

    def _compare_update(self, record: Record, partial: Record, update: Update) -> None:
        format_ = self.layout.format
        self.problems += _compared_values(format_, "sow", record, update.record)
        self.problems += _compared_deltas(format_, "delta", partial, update.delta, update.removed, update.is_empty)
        self.problems += compared("sow", update.sow_headers, without_stamps(headers_of(record)))
        self.problems += compared("delta", update.delta_headers, headers_of(partial))
        if any(problem.what in ("sow value", "sow header version") for problem in self.problems):
            raise _Lost

    def _pass_on(self, sow: list[Record], updates: list[Update]) -> None:
        """Pass the SOW records on to the conflated topic, or to the subscription."""
        if self.copy is not None:
            self._deliver(self.copy.take(sow, self.layout.format))
            return
        # Each in the order of the topic, which is that of its key's updates.
        waiting: dict[bytes, list[Update]] = {}
        for update in updates:
            waiting.setdefault(update.key, []).append(update)
        events = []
        for record in sow:
            assert record.key is not None
            update = waiting[record.key].pop(0)
            events.append(Event(update.key, update.record, update.version, update.kind))
        self.problems += self.subscribing.take(sow, events, self.driver.now_ms)

    def _deliver(self, delivered: tuple[list[Record], list[Record], list[Delivery]]) -> None:
        """Compare the deliveries of the copy, and pass them on to the subscription."""
        sow, delta, deliveries = delivered
        if sorted(r.key or b"" for r in sow) != sorted(d.key for d in deliveries):
            self._note("conflated records", f"{[(r.key, r.value) for r in sow]}, not {deliveries}")
            raise _Lost
        ordered = sorted(deliveries, key=lambda delivery: delivery.key)
        format_ = self.layout.format
        for record, partial, delivery in zip(_by_key(sow), _by_key(delta), ordered, strict=True):
            self.problems += _compared_values(format_, "conflated sow", record, delivery.record)
            self.problems += _compared_deltas(
                format_, "conflated delta", partial, delivery.delta, delivery.removed, delivery.is_empty
            )
            self.problems += compared("conflated sow", delivery.sow_headers, headers_of(record))
            self.problems += compared("conflated delta", delivery.delta_headers, headers_of(partial))
        by_key = {(d.key, d.sow_headers["version"]): d for d in deliveries}
        events = []
        for record in sow:
            headers = headers_of(record)
            delivery = by_key[record.key or b"", headers["version"]]
            kind = headers.get("kind", "update")
            touched = delivery.delta if kind == "update" else None
            events.append(Event(delivery.key, delivery.record, int(headers["version"]), kind, touched))
        self.problems += self.subscribing.take(sow, events, self.driver.now_ms)

    def _news(self, role: Any) -> list[Record]:
        records = self.driver.read_output(role)
        begin, self.seen[role] = self.seen[role], len(records)
        return records[begin:]

    def _note(self, what: str, detail: str) -> None:
        self.problems.append(Problem(what, detail))


class _Copy:
    """The conflated topic and its model."""

    def __init__(self, layout: Layout, topic: TopicConfig, now_ms: int) -> None:
        selection = Compare(layout.path("state"), "!=", "void") if layout.row["conflation"] == "filter" else None
        settings = ConflatedConfig(
            underlying="orders",
            interval=INTERVAL_MS / 1000,  # type: ignore[arg-type]
            filter=None if selection is None else selection.text,
        )
        self.driver = ProcessorTestDriver(
            Conflate, settings, name="orders_1s", topic=topic, underlying="orders", now_ms=now_ms
        )
        self.model = ConflatedTopic(layout.format, layout.key, INTERVAL_MS, selection, "orders")
        self.seen = 0

    def take(self, sow: list[Record], format_: Format) -> tuple[list[Record], list[Record], list[Delivery]]:
        """Process updates of the underlying topic."""
        deliveries: list[Delivery] = []
        for record in sow:
            assert record.key is not None
            value = None if record.value is None else format_.read(record.value)
            offset = len(self.driver.input) + sow.index(record)
            update = SowRecord(record.key, value, headers_of(record), offset, self.driver.now_ms)
            deliveries += self.model.take(update, self.driver.now_ms)
        self.driver.pipe_batch([(r.key, r.value, r.headers) for r in sow])
        return *self._delivered(), deliveries

    def advance(self, ms: int) -> tuple[list[Record], list[Record], list[Delivery]]:
        """Move the clock."""
        self.driver.advance_time(ms)
        deliveries = self.model.advance(self.driver.now_ms)
        return *self._delivered(), deliveries

    def crash(self) -> None:
        """Kill its worker, and start another one."""
        self.driver.crash()
        self.model.restart(self.driver.now_ms)

    def _delivered(self) -> tuple[list[Record], list[Record]]:
        self.driver.commit()
        sow, delta = self.driver.read_output("sow"), self.driver.read_output("delta")
        begin, self.seen = self.seen, len(sow)
        return sow[begin:], delta[begin:]


class _Lost(Exception):
    """The product's state has diverged from the model's, so further comparison is useless."""


def _by_key(records: list[Record]) -> list[Record]:
    """The records in the order of each key; keys have no order among them."""
    return sorted(records, key=lambda record: record.key or b"")


def _once(records: list[Record]) -> list[Record]:
    """The records without repeats.

    Under at-least-once a repeat has the `source` of the first, or the reason of a dead letter.
    """
    first: dict[tuple[bytes | None, str | None, str | None], Record] = {}
    for record in records:
        headers = headers_of(record)
        first.setdefault((record.key, headers.get("source"), headers.get("kind")), record)
    return list(first.values())


def _compared_values(format_: Format, place: str, record: Record, wanted: Any) -> list[Problem]:
    actual = None if record.value is None else format_.read(record.value)
    if same(actual, wanted):
        return []
    return [Problem(f"{place} value", f"{record.key!r} is {actual}, not {wanted}; {headers_of(record)}")]


def _compared_deltas(
    format_: Format, place: str, record: Record, wanted: Any, removed: frozenset[Any], is_empty: bool
) -> list[Problem]:
    headers = headers_of(record)
    problems = []
    assert record.value is not None
    actual = format_.read_delta(record.value, headers)
    if not same(actual, wanted):
        problems.append(Problem(f"{place} value", f"{record.key!r} is {actual}, not {wanted}; {headers}"))
    if removed_of(headers) != removed:
        problems.append(Problem(f"{place} header removed", f"{headers.get('removed')}, not {removed}"))
    if (headers.get("empty") == "true") != is_empty:
        problems.append(Problem(f"{place} header empty", f"{headers.get('empty')}, not {is_empty}"))
    return problems
