"""The recorded history: commands of every kind that a publisher can send, the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from processor.codec import codec_options, load_codec
from processor.config import TopicConfig

SCHEMA = Path(__file__).with_name("trade.avsc")
TTL_S = 30
"""How long a record of the expiring keys lives."""

KINDS: dict[str, dict[str, Any]] = {
    "ignore": {},
    "set": {"null_policy": "set"},
    "remove": {"null_policy": "remove", "merge_depth": 2},
    "pair": {"key": ["/desk", "/id"]},
    "avro": {"message_type": "avro", "schema": str(SCHEMA)},
    "groups": {
        "null_policy": "remove",
        "sequence_groups": [{"by": "/ts", "fields": ["/qty", "/party", "/tags", "/fills", "/total"]}],
        "merge_rules": {"/fills": "sum", "/seen": "union"},
        "enrich": {"/total": "/fills * /price", "/was": "PREVIOUS(/price)"},
    },
}
"""The topics of each engine with their special settings; the other settings are the same."""

_CITIES = ["Oslo", "Bergen", "Røros", "Å"]
_TAGS = ["a", "b", "urgent"]
_REMOVED = [b'["/qty"]', b'["/party/address/city","/no"]']
_REMOVED_OF_GROUPS = [*_REMOVED, b'["/party"]', b'["/fills","/price"]', b'["/tags/0"]', b'["/ts","/seen"]']


class Command(NamedTuple):
    """One record of an input topic."""

    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes]]


class Commands:
    """The commands of one topic, one after the other."""

    def __init__(self, kind: str, seed: int, keys: int) -> None:
        self._rng = random.Random(f"{seed}/{kind}")
        self._kind, self._keys = kind, keys
        topic = TopicConfig(**KINDS[kind])
        self._codec = load_codec(topic.message_type, codec_options(topic, name="history"))
        self._removed = _REMOVED_OF_GROUPS if kind == "groups" else _REMOVED
        self._tick = 0
        self._sequences = dict.fromkeys((b"desk", b"feed", b"risk"), 0)

    def take(self, count: int) -> Iterator[Command]:
        """The next commands, over all keys."""
        for _ in range(count):
            yield self._command(f"k{self._rng.randrange(self._keys)}")

    def expiring(self, keys: int) -> Iterator[Command]:
        """Records that live for TTL_S, some changed once or twice in quick succession."""
        for number in range(keys):
            # First a full record, which is never refused: a delta may remove a path that its own value cuts off.
            for command in ["publish"] + ["delta_publish"] * self._rng.randrange(3):
                yield self._written(f"x{number}", command, [("expiration", b"%d" % TTL_S)])

    def again(self, keys: int) -> Iterator[Command]:
        """New records for half of the keys whose records have expired."""
        for number in range(0, keys, 2):
            yield self._written(f"x{number}", "delta_publish", [("expiration", b"0")])

    def _command(self, key: str) -> Command:
        rng = self._rng
        headers = self._headers()
        chance = rng.random()
        if chance < 0.01:
            return Command(self._text(key), None, headers)
        if chance < 0.02:
            return Command(self._text(key), b"", [*headers, ("command", b"sow_delete")])
        if chance < 0.025:
            return self._rubbish(key, headers)
        return self._written(key, "publish" if chance < 0.12 else "delta_publish", headers)

    def _written(self, key: str, command: str, headers: list[tuple[str, bytes]]) -> Command:
        is_delta = command == "delta_publish"
        # A delta may leave a key field out.
        has_desk = self._kind == "pair" and (not is_delta or self._rng.random() < 0.9)
        own = {"desk": _desk_of(key)} if has_desk else {}
        body = {"id": key, **own, **(self._trade() if self._kind == "avro" else self._order())}
        if not is_delta or self._rng.random() < 0.5:
            headers = [*headers, ("command", command.encode())]
            is_delta = command == "delta_publish"
        if self._kind == "avro" and is_delta:
            value, more = self._codec.encode_delta(body)
            return Command(self._text(key), value, [*headers, *((name, text or b"") for name, text in more)])
        if self._kind != "avro":
            if is_delta and self._rng.random() < 0.05:
                headers = [*headers, ("remove", self._rng.choice(self._removed))]
            return Command(self._text(key), json.dumps(body, ensure_ascii=False).encode(), headers)
        return Command(self._text(key), self._codec.encode(body), headers)

    def _text(self, key: str) -> bytes:
        return f'["{_desk_of(key)}","{key}"]'.encode() if self._kind == "pair" else key.encode()

    def _headers(self) -> list[tuple[str, bytes]]:
        rng = self._rng
        headers: list[tuple[str, bytes]] = []
        if rng.random() < 0.3:
            client = rng.choice([*self._sequences])
            if rng.random() < 0.95:  # Else its last number comes again, as sometimes an earlier one does.
                self._sequences[client] += 1
            number = max(1, self._sequences[client] - rng.choice([0] * 19 + [1, 2, 5, 40]))
            headers += [("client", client), ("sequence", b"%d" % number)]
        if rng.random() < 0.05:
            headers.append(("expiration", rng.choice([b"0", b"86400"])))
        if rng.random() < 0.03:  # Refused unless the record has this version.
            headers.append(("expect_version", b"%d" % rng.choice([0, 1, 2, 3, 8])))
        if rng.random() < 0.05:
            headers.append(("correlation_id", b"c%d" % rng.randrange(100)))
        if rng.random() < 0.05:
            headers.append(("traceparent", b"t"))
        return headers

    def _rubbish(self, key: str, headers: list[tuple[str, bytes]]) -> Command:
        rubbish = [
            Command(self._text(key), b'{"id":', headers),
            Command(self._text(key), b"[1]", headers),
            Command(self._text(key), b'{"id":"another"}', headers),
            Command(self._text(key), b"{}", [*headers, ("command", b"upsert")]),
            Command(self._text(key), b"{}", [*headers, ("expiration", b"soon")]),
        ]
        return self._rng.choice(rubbish)

    def _order(self) -> dict[str, Any]:
        rng = self._rng
        fields = {
            "qty": lambda: rng.choice([None, 1, 1.0, True, "1", 2**70, rng.randrange(1000)]),
            "price": lambda: rng.choice([None, rng.random(), 0.1, -0.0, 5]),
            "state": lambda: rng.choice([None, "", "new", "done"]),
            "tags": lambda: rng.sample(_TAGS, rng.randrange(3)) or None,
            "legs": lambda: [{"px": rng.randrange(5), "q": None}] * rng.randrange(3),
            "party": self._party,
        }
        chosen = {name: fields[name]() for name in rng.sample([*fields], rng.randrange(4))}
        if self._kind == "groups":
            self._tick += 1
            # Most come late by some updates of their key, and a few have no time.
            if rng.random() < 0.95:
                chosen["ts"] = self._tick + rng.randrange(4 * self._keys)
            if rng.random() < 0.5:
                chosen |= {"fills": rng.randrange(9), "seen": [rng.choice(_TAGS)]}
        return chosen

    def _party(self) -> Any:
        rng = self._rng
        chance = rng.random()
        if chance < 0.1:
            return rng.choice([None, {}, "ann", [1]])
        party: dict[str, Any] = {"name": rng.choice([None, "Ann", "Ben"])} if rng.random() < 0.5 else {}
        if rng.random() < 0.7:
            party["address"] = rng.choice([{"city": rng.choice(_CITIES)}, {"zip": rng.randrange(9)}, {"city": None}, 7])
        return party

    def _trade(self) -> dict[str, Any]:
        rng = self._rng
        fields = {
            "qty": lambda: rng.choice([None, rng.randrange(1000), 2**62]),
            "price": lambda: rng.choice([None, rng.random(), -0.0]),
            "state": lambda: rng.choice([None, "", "new", "done"]),
            "tags": lambda: rng.sample(_TAGS, rng.randrange(3)),
            "party": lambda: rng.choice(
                [
                    {"name": rng.choice([None, "Ann"])},
                    {"address": {"city": rng.choice(_CITIES)}},
                    {"address": {"zip": 7}},
                ]
            ),
            "limits": lambda: {rng.choice(_TAGS): rng.randrange(9)},
        }
        return {name: fields[name]() for name in rng.sample([*fields], rng.randrange(4))}


def _desk_of(key: str) -> str:
    """The other key field of the topic with two: one of three texts for each key."""
    return ("fx", "Ålesund", "")[len(key) % 3]
