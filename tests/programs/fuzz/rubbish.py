"""Makes bad input: valid commands, mutated ones, random bytes, hostile sizes and headers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, TypeAlias

Command: TypeAlias = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Key, value and headers of one record, as Kafka takes them."""

KEYS = 5_000
RECORD_BYTES_MAX = 1_048_576
"""The size limit of the topic's records; the generator exceeds it now and then."""

_NUMBERS = [
    "0", "-0", "-0.0", "1e400", "1E-400", "18446744073709551616", "-9223372036854775809",
    "0.1234567890123456789", "1.0", "1e2", "00", "+1", ".5", "NaN", "Infinity", "1_000", "0x10",
]  # fmt: skip
_TEXTS = ["", "é", "𝄞", "\u0000", "\ud7ff", "~/", 'a"b\\', "\u2028", "x" * 300]
_WORDS = [b"publish", b"delta_publish", b"sow_delete", b"upsert", b"", b"\xff", b"PUBLISH", b"publish "]
_HOSTILE_HEADERS: list[tuple[str, list[bytes | None]]] = [
    ("command", [*_WORDS, None]),
    ("allow-merge", [b"true", b"false", b"maybe", None]),
    ("remove", [b'["/a"]', b'["/a/x","/zz"]', b'["/id"]', b"[1]", b"{}", b'["a"]', b"[" * 5000, b"\xfe", None]),
    ("expiration", [b"0", b"3600", b"0.05", b"0.001", b"1e9", b"-1", b"soon", b"1" * 400, b"nan", b"", None]),
    ("client", [b"a", b"b", b"c", b"\xff", b"", None]),
    ("sequence", [b"1", b"2", b"99999999999999999999", b"-1", b"x", b"", None]),
    ("correlation_id", [b"abc=", b"not base64!", b"A" * 5000, None]),
    ("sow_key", [b"1", b"\x00", b"!", None]),
    ("ack_type", [b"persisted", b"received,processed,completed,persisted", b"stats", b"thanks", b",", None]),
    ("command_id", [b"1", b"\xff", b"x" * 5000, None]),
    ("fields", [b'["/a"]', b"x"]),
    ("version", [b"7", b"x"]),
    ("kind", [b"delete"]),
    ("source", [b"elsewhere/0/0"]),
    ("replay_of", [b"orders.publish/0/1", b"x", b"\xff"]),
    ("dlq_reason", [b"undecodable"]),
    ("traceparent", [b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", b"\xff\x00", None]),
    ("", [b"no name"]),
]


def commands(seed: int, count: int, keys: int = KEYS) -> Iterator[Command]:
    """The given number of commands over the given number of keys, the same for the same seed."""
    rng = random.Random(seed)
    sequences = {b"feed-%d" % number: 0 for number in range(8)}
    for number in range(count):
        key = rng.randrange(keys)
        value: bytes | None = json.dumps(_body(rng, key, number), ensure_ascii=rng.random() < 0.5).encode(
            errors="replace"
        )
        headers: list[tuple[str, bytes | None]] = []
        kind = rng.random()
        if kind < 0.45:
            pass
        elif kind < 0.55:
            headers.append(("command", b"publish"))
        elif kind < 0.60:
            value = None
        elif kind < 0.78:
            value = _mutated(rng, value or b"")
            if rng.random() < 0.1:
                headers += _asked(rng, number)
        elif kind < 0.82:
            value = rng.randbytes(rng.randrange(200))
        elif kind < 0.83:
            value = _deep(rng, key)
        elif kind < 0.8301:
            value = b'{"id":%d,"blob":"%s"}' % (key, b"x" * rng.randrange(500_000, RECORD_BYTES_MAX + 100_000))
        elif kind < 0.90:
            client = rng.choice(list(sequences))
            sequences[client] += rng.choice([-2, 0, 1, 1, 1])
            headers += [("client", client), ("sequence", b"%d" % max(0, sequences[client]))]
            if rng.random() < 0.5:
                headers += _asked(rng, number)
            if rng.random() < 0.2:
                value = None
        else:
            for name, values in rng.sample(_HOSTILE_HEADERS, rng.randrange(1, 4)):
                headers.append((name, rng.choice(values)))
        yield _key(rng, key), value, headers


def _asked(rng: random.Random, number: int) -> list[tuple[str, bytes | None]]:
    """Headers that request acks, under a name that no other command has."""
    types = rng.choice([b"persisted", b"processed, persisted", b"received,processed,completed,persisted", b"stats"])
    return [("ack_type", types), ("command_id", b"cmd-%d" % number)]


def _key(rng: random.Random, key: int) -> bytes | None:
    """A Kafka key, mostly that of the body."""
    kind = rng.random()
    if kind < 0.97:
        return b"%d" % key
    return rng.choice([None, b"", b"\xff\xfe", b"%d" % (key + 1), b"k" * 3000, b'["1"]'])


def _body(rng: random.Random, key: int, number: int) -> dict[str, Any]:
    """A full record or a delta, nested, with values that are easily mistaken for others."""
    body: dict[str, Any] = {"id": key} if rng.random() < 0.95 else {}
    for name in rng.sample(["a", "b", "n", "tags", "note", "é/~", ""], rng.randrange(0, 5)):
        body[name] = _value(rng, number, 3)
    return body


def _value(rng: random.Random, number: int, levels: int) -> Any:
    kind = rng.randrange(9 if levels else 6)
    if kind == 0:
        return rng.choice([1, 1.0, True, False, None, 0.0, -0.0])
    if kind == 1:
        return rng.choice(_TEXTS)
    if kind <= 3:
        return number
    if kind <= 5:
        return rng.random() * 10 ** rng.randrange(-20, 20)
    if kind == 6:
        return [_value(rng, number, levels - 1) for _ in range(rng.randrange(4))]
    return {rng.choice("xyzw"): _value(rng, number, levels - 1) for _ in range(rng.randrange(4))}


def _mutated(rng: random.Random, data: bytes) -> bytes:
    """The data with a few bytes changed, removed or inserted; often still JSON, with another meaning."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0 and changed:
            changed[place % len(changed)] = rng.randrange(256)
        elif kind == 1:
            del changed[place : place + rng.randrange(1, 8)]
        elif kind == 2:
            changed[place:place] = rng.choice(
                [b"{", b"}", b"[", b"]", b'"', b",", b":", b" ", b"\\", b"null", b"\xef\xbb\xbf"]
            )
        elif kind == 3:
            changed[place:place] = rng.choice(_NUMBERS).encode()
        else:
            changed = changed[:place] + changed[max(0, place - 12) :]
    return bytes(changed)


def _deep(rng: random.Random, key: int) -> bytes:
    """A message nested about as deeply as is accepted, or far deeper."""
    depth = rng.choice([100, 126, 127, 128, 129, 254, 255, 1023, 1024, 5000, 100_000])
    if rng.random() < 0.5:
        return b'{"id":%d,"a":' % key + b"[" * depth + b"]" * depth + b"}"
    return b'{"id":%d,"a":' % key + b'{"x":' * depth + b"1" + b"}" * depth + b"}"
