"""Accounts for every input record by the output records that an independent reader reads."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from confluent_kafka import Message

from tests.endtoend.oracle import applied, merged
from tests.programs.fuzz.asked import Asked


class Input(NamedTuple):
    """The parts of an input record that are needed until the outputs have shown its outcome."""

    key: bytes
    value: bytes | None
    headers: dict[str, str]
    timestamp_ms: int


@dataclass
class Ledger:
    """One family of topics with `source_header`, read record by record: input first, then delta, DLQ, acks and SOW."""

    inputs: dict[str, str] = field(default_factory=dict)
    """Each input record by its place, with the reason why it may have left no trace, or `must` where it may not."""
    fates: Counter[str] = field(default_factory=Counter)
    """The number of records merged, rejected for each reason, or without a trace for each allowed cause."""
    wrong: list[str] = field(default_factory=list)
    """The discrepancies."""
    _pending_inputs: dict[str, Input] = field(default_factory=dict)
    _lives_ms: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """The time of each record's last update, and its least lifetime from then on; 0 is for ever."""
    _rejected: dict[str, str] = field(default_factory=dict)
    _asked: Asked = field(default_factory=Asked)
    _seen: set[str] = field(default_factory=set)
    _unreadable: set[str] = field(default_factory=set)
    """The places of input records with a header name that is not UTF-8."""
    _world: dict[bytes, Any] = field(default_factory=dict)
    _versions: dict[bytes, int] = field(default_factory=dict)
    _sow: dict[bytes, Any] = field(default_factory=dict)

    def take_input(self, message: Message) -> None:
        """Process an input record, and derive its allowed outcomes."""
        pairs = _headers(message)
        place, headers = _place(message), dict(pairs or ())
        if pairs is None:
            trace = "must"
            self._unreadable.add(place)
        elif message.key() is None:
            trace = "rekeyed"
        elif "sequence" in headers:
            trace = "duplicate"
        elif message.value() is None or headers.get("command") == b"sow_delete":
            trace = "delete_of_nothing"
        else:
            trace = "must"
        self.inputs[place] = trace
        texts = {} if pairs is None else _texts(message)
        self._asked.take_input(place, message, texts)
        if message.key() is not None:
            self._pending_inputs[place] = Input(message.key(), message.value(), texts, message.timestamp()[1])

    def take_delta(self, message: Message) -> None:
        """Process a delta record, and replay it as a subscriber would."""
        headers = _texts(message)
        key, version = message.key() or b"", int(headers["version"])
        source_record = None
        if headers.get("kind") == "expire":
            self.fates["expired by the clock"] += 1
            published_ms, lives_ms = self._lives_ms.get(key, (0, 0))
            if not lives_ms or message.timestamp()[1] < published_ms + lives_ms:
                self.wrong.append(f"{_place(message)}: expired too early")
        else:
            self._account(headers["source"], "merged")
            source_record = self._pending_inputs.pop(headers["source"], None)
        base = int(headers.get("delta_base", 0 if headers.get("kind") == "insert" else version - 1))
        if base != self._versions.get(key, 0):
            self.wrong.append(f"{_place(message)}: delta for version {base} met {self._versions.get(key, 0)}")
        before = self._world.get(key)
        if headers.get("kind") in ("delete", "expire"):
            self._world.pop(key, None)
            self._versions.pop(key, None)
            if source_record is not None and expected(before, source_record) is not None:
                self.wrong.append(f"{_place(message)}: a delete that nobody asked for")
            return
        self._versions[key] = version
        record = applied(before or {}, parse(message.value()))
        for pointer in json.loads(headers.get("removed", "[]")):
            *path, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
            holder = record
            for name in path:
                holder = holder.get(name, {}) if isinstance(holder, dict) else {}
            if not isinstance(holder, dict) or last not in holder:
                self.wrong.append(f"{_place(message)}: {pointer} is removed and was not there")
                continue
            del holder[last]
        self._world[key] = record
        if source_record is not None:
            # A delta leaves a record its own time to live; a full publish has the topic's, which is none.
            _, kept_ms = self._lives_ms.get(key, (0, 0))
            lives_ms = kept_ms if before is not None and command_of(source_record) == "delta_publish" else 0
            if "expiration" in source_record.headers:
                lives_ms = int(float(source_record.headers["expiration"]) * 1000)
            self._lives_ms[key] = (source_record.timestamp_ms, lives_ms)
            if not same(expected(before, source_record), record, as_written=False):
                self.wrong.append(
                    f"{headers['source']}: {before!r:.200} and {source_record!r:.300} gave {record!r:.200}"
                )

    def take_dlq(self, message: Message) -> None:
        """Process a dead letter."""
        headers = _texts(message)
        self._account(headers["source"], f"rejected: {headers['dlq_reason']}")
        self._rejected[headers["source"]] = headers["dlq_reason"]
        source_record = self._pending_inputs.pop(headers["source"], None)
        if source_record is not None and (
            source_record.value != message.value() or source_record.timestamp_ms > message.timestamp()[1]
        ):
            self.wrong.append(f"{headers['source']}: its dead letter is another one")
        if headers["dlq_reason"] == "plugin_failed":
            self.wrong.append(f"{headers['source']}: the processor itself failed: {headers['dlq_detail']}")

    def take_ack(self, message: Message) -> None:
        """Process an acknowledgement."""
        self._asked.take_ack(message)

    def take_sow(self, message: Message) -> None:
        """Process a SOW record."""
        if message.value() is None:
            self._sow.pop(message.key() or b"", None)
        else:
            self._sow[message.key() or b""] = parse(message.value())

    def close(self, counted: dict[str, int]) -> None:
        """Report the discrepancies that show only when everything was read.

        Args:
            counted: the worker's own counts, by event.
        """
        left: Counter[str] = Counter(trace for place, trace in self.inputs.items() if place not in self._seen)
        lost = [place for place, trace in self.inputs.items() if trace == "must" and place not in self._seen]
        del left["must"]
        if lost:
            self.wrong.append(f"{len(lost)} input records left no trace, such as {lost[0]}")
        traces = {name: counted.get(name, 0) for name in ("rekeyed", "duplicate", "delete_of_nothing")}
        if sum(left.values()) != sum(traces.values()):
            self.wrong.append(f"{dict(left)} left no trace, the worker counted {traces}")
        self.fates.update({name: count for name, count in traces.items() if count})
        asked = self._asked.close(self._rejected, self._seen - self._rejected.keys())
        self.fates["asked for acks"] += asked
        self.wrong += self._asked.wrong
        for place in self._unreadable:
            # A value that is too long is noticed first.
            if (reason := self._rejected.get(place)) not in ("bad_header", "too_large"):
                self.wrong.append(f"{place}: a header name is not UTF-8, and the record was rejected as {reason}")
        self.fates["with a header name that is not UTF-8"] += len(self._unreadable)
        differ = [
            key
            for key in self._world.keys() | self._sow.keys()
            if not same(self._world.get(key), self._sow.get(key), as_written=True)
        ]
        if differ:
            self.wrong.append(f"{len(differ)} keys: delta replay is not SOW, such as {differ[0]!r}")

    def _account(self, place: str, fate: str) -> None:
        if place in self._seen:
            self.wrong.append(f"{place} is accounted for twice")
        if place not in self.inputs:
            self.wrong.append(f"{place} is no input record")
        self._seen.add(place)
        self.fates[fate] += 1


def _place(message: Message) -> str:
    return f"{message.topic()}/{message.partition()}/{message.offset()}"


def _headers(message: Message) -> list[tuple[str, bytes | None]] | None:
    """The headers of a message; None where confluent_kafka cannot read a name, whose headers may not be touched."""
    try:
        (headers,) = map(type(message).headers, (message,))  # `map` checks each call for an exception.
    except SystemError:
        return None
    return list(headers or ())  # type: ignore[arg-type]


def _texts(message: Message) -> dict[str, str]:
    """The headers as texts; the last of a name counts, as the worker's own come last."""
    return {name: (value or b"").decode(errors="replace") for name, value in message.headers() or ()}


def parse(data: bytes | None) -> Any:
    """A message, with every digit of its numbers; rubbish may be one behind a frame of five bytes."""
    text = data or b""
    return json.loads(text[5:] if text[:1] == b"\0" else text, parse_float=Decimal)


def expected(old: Any, message: Input) -> Any:
    """The record after a command, by the default policies and with every digit, or None if there is none."""
    command = command_of(message)
    if message.value is None or command == "sow_delete":
        return None
    new = parse(message.value)
    if command == "delta_publish":
        new = merged(old, new)
        if old is not None and "id" in old:
            new["id"] = old["id"]
    elif "id" not in new:
        text = message.key.decode()
        new["id"] = old["id"] if old is not None and str(old.get("id")) == text else text
    for pointer in json.loads(message.headers.get("remove", "[]")):
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        holder = new
        for name in path:
            holder = holder.get(name) if isinstance(holder, dict) else None
        if isinstance(holder, dict):
            holder.pop(last, None)
    return new


def command_of(message: Input) -> str:
    """The command of an input record with a value, on a topic that merges by default."""
    flag = message.headers.get("allow-merge")
    return message.headers.get("command") or ("publish" if flag == "false" else "delta_publish")


def same(one: Any, other: Any, *, as_written: bool) -> bool:
    """Return whether two values are strictly the same: 1, 1.0 and true are three values; members have no order.

    Args:
        one: a value.
        other: another one.
        as_written: whether 1.10 is another value than 1.1.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same(value, other[name], as_written=as_written) for name, value in one.items()
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(
            same(value, its, as_written=as_written) for value, its in zip(one, other, strict=True)
        )
    if isinstance(one, Decimal) and not as_written:
        return one == other and one.is_signed() == other.is_signed()
    return bool(one == other) and str(one) == str(other)
