"""Accounts for the acks: every command that requested acks, under a name of its own, gets exactly those."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Message

_TYPES = ("received", "processed", "completed", "persisted", "stats")
_PREFIX = "cmd-"


@dataclass
class _Command:
    """One input record that requested acks."""

    place: str
    partition: int
    types: Counter[str]
    client: str
    sequence: int | None
    has_key: bool
    is_delete: bool


@dataclass
class Asked:
    """The acks requested and the acks received."""

    wrong: list[str] = field(default_factory=list)
    """The discrepancies."""
    _commands: dict[str, list[_Command]] = field(default_factory=lambda: defaultdict(list))
    _received: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    _persisted: dict[tuple[int, str], int] = field(default_factory=dict)
    """The highest conflated ack of each client in each partition."""

    def take_input(self, place: str, message: Message, headers: dict[str, str]) -> None:
        """Process an input record; one that was sent again with its key has the name of the one without."""
        name = headers.get("command_id", "")
        if name.startswith(_PREFIX) and "ack_type" in headers:
            types = Counter(
                word for word in _TYPES if word in [part.strip() for part in headers["ack_type"].split(",")]
            )
            sequence = int(headers["sequence"]) if "sequence" in headers else None
            command = _Command(
                place,
                message.partition() or 0,
                types,
                headers.get("client", ""),
                sequence,
                has_key=message.key() is not None,
                is_delete=message.value() is None or headers.get("command") == "sow_delete",
            )
            self._commands[name].append(command)

    def take_ack(self, message: Message) -> None:
        """Process an ack."""
        ack = json.loads(message.value() or b"")
        if ack.get("command_id", "").startswith(_PREFIX):
            self._received[ack["command_id"]].append(ack)
        elif ack["ack_type"] == "persisted" and ack["status"] == "success" and ack.keys() >= {"client", "sequence"}:
            lane = (message.partition() or 0, ack["client"])
            self._persisted[lane] = max(ack["sequence"], self._persisted.get(lane, -1))

    def close(self, rejected: dict[str, str], merged: set[str]) -> int:
        """Report the missing acks when everything was read; returns how many commands requested acks.

        Args:
            rejected: the reason by place of each input record in the dead-letter topic.
            merged: the places of those that left a delta.
        """
        for name, commands in self._commands.items():
            acks = self._received.pop(name, [])
            # One without a key that was sent again is answered where it came to.
            answerable = [command for command in commands if command.has_key or command.place in rejected]
            if len(answerable) != 1:
                self.wrong.append(
                    f"{name} should be answered once, not for {[command.place for command in answerable]}"
                )
                continue
            problem = self._problem(answerable[0], acks, rejected, merged)
            if problem:
                self.wrong.append(f"{answerable[0].place} asked as {name}: {problem}, was told {acks}")
        if self._received:
            self.wrong.append(f"acks for {list(self._received)[:3]}, which asked for none")
        return len(self._commands)

    def _problem(
        self, command: _Command, acks: list[dict[str, Any]], rejected: dict[str, str], merged: set[str]
    ) -> str | None:
        kinds = Counter(ack["ack_type"] for ack in acks)
        missing, more = command.types - kinds, kinds - command.types
        reason = rejected.get(command.place)
        conflated = self._persisted.get((command.partition, command.client), -1)
        if reason is None and command.sequence is not None:
            if missing["persisted"] and conflated >= command.sequence:
                del missing["persisted"]
            elif command.place in merged and any(
                ack["ack_type"] == "persisted" and "reason" not in ack for ack in acks
            ):
                return "a persisted ack that should be conflated"
        if missing or more:
            return f"{dict(missing)} are missing, {dict(more)} too many"
        for ack in acks:
            is_unsupported = ack["ack_type"] == "stats" and not command.is_delete
            has_failed = reason is not None and ack["ack_type"] != "received"
            status = "failure" if is_unsupported or has_failed else "success"
            if ack["status"] != status:
                return f"{ack['ack_type']} should be a {status}"
            if status == "failure" and ack["ack_type"] != "stats" and not ack["reason"].startswith(f"{reason}: "):
                return f"the reason is {reason}"
        return None
