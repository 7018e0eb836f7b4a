"""What the headers of an input record ask for: one pass over them, each checked, the last of a name counts."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.api import Headers, Name, RecordRejected, Value
from processor.plugins.expiry import ttl_ms_of
from processor.record import COMMANDS, OUR_HEADERS, TRAVELLING_HEADERS

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT_BYTES_MAX: Final = 1024
"""Longest client, command id, correlation id and SOW key."""

KEY_BYTES_MAX: Final = 64 * 1024
"""Longest key of a record: it goes beside the record onto every topic, and into acks."""

SEQUENCE_MAX: Final = 2**63 - 1

PASSED_BYTES_MAX: Final = 1024 * 1024
"""Most that headers which travel on may have together: they go onto records that are larger than what brought them."""

ACK_TYPES: Final = ("received", "processed", "completed", "persisted", "stats")
"""What an `ack_type` may list, in the order in which they are sent."""

_READ: Final = frozenset((
    Name.COMMAND, Name.ALLOW_MERGE, Name.REMOVE, Name.EXPIRATION, Name.CLIENT, Name.SEQUENCE, Name.CORRELATION_ID,
    Name.SOW_KEY, Name.ACK_TYPE, Name.COMMAND_ID, Name.REPLAY_OF, Name.SOURCE,
))  # fmt: skip
_NUMBER = re.compile(rb"[0-9]{1,19}")
_BASE64 = re.compile(rb"[A-Za-z0-9+/=]{1,1024}")
_MERGE_COMMANDS: Final = {b"true": "delta_publish", b"false": "publish"}

# Request(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


class Request(NamedTuple):
    """What is asked of one record."""

    command: str
    """The command, by header or by the topic's default."""
    passed: Headers
    """What travels on as it was sent."""
    ttl_ms: int
    """How long the record lives from now, by header or by the topic's default; 0 is for ever."""
    correlation_id: bytes = b""
    """Empty where there is none."""
    remove: Value = None
    """The parsed header `remove`; None where there is none."""
    sow_key: bytes | None = None
    """The explicit key."""
    client: bytes = b""
    """The publisher's name, UTF-8; empty where there is none."""
    sequence: int = -1
    """The publisher's own growing number; -1 where there is none."""
    acks: tuple[str, ...] = ()
    """The acknowledgements asked for, in the order in which they are sent."""
    command_id: bytes = b""
    """UTF-8; empty where there is none."""
    is_replay: bool = False
    """True for a dead letter that was sent again."""
    source: bytes = b""
    """Of a record that was sent again with its key: where it came in."""


class RequestReader:
    """Reads requests as a topic's settings say."""

    def __init__(self, default_command: str, ttl_ms: int, codec_headers: frozenset[str] = frozenset()) -> None:
        """Make one.

        Args:
            default_command: what a record without header `command` is.
            ttl_ms: how long a record without header `expiration` lives; 0 is for ever.
            codec_headers: headers that are part of the message, for its message type alone to read.
        """
        self.plain: Final = Request(default_command, [], ttl_ms)
        """What a record without headers asks for."""
        self._dropped = OUR_HEADERS | codec_headers

    def read(self, headers: Headers) -> Request:
        """What these headers ask for.

        Raises:
            RecordRejected: `bad_header` or `unknown_command`, naming the header.
        """
        given: dict[str, bytes] = {}
        passed: Headers = []
        for header in headers:
            name, value = header
            if name in _READ:
                given[name] = value or b""
                if name in TRAVELLING_HEADERS:
                    passed.append(header)
            elif name not in self._dropped:
                passed.append(header)
        if passed and sum(len(name) + len(value or b"") for name, value in passed) > PASSED_BYTES_MAX:
            raise RecordRejected("too_large", f"its headers that travel on have more than {PASSED_BYTES_MAX} bytes")
        command, _, ttl_ms, correlation_id, remove, sow_key, client, sequence, acks, command_id, is_replay, source = (
            self.plain
        )
        if Name.COMMAND in given or Name.ALLOW_MERGE in given:
            command = _command(given, command)
        for name, value in given.items():
            if name == Name.REMOVE:
                remove = _array(name, value)
            elif name == Name.EXPIRATION:
                ttl_ms = ttl_ms_of(value)
            elif name == Name.CORRELATION_ID:
                correlation_id = _base64(name, value)
            elif name == Name.SOW_KEY:
                sow_key = _base64(name, value)
            elif name == Name.CLIENT:
                client = _short(name, value)
            elif name == Name.COMMAND_ID:
                command_id = _short(name, value)
            elif name == Name.SEQUENCE:
                sequence = _sequence(value, has_client=Name.CLIENT in given)
            elif name == Name.ACK_TYPE:
                acks = ack_types(value)
            elif name == Name.REPLAY_OF:
                is_replay = True
            elif name == Name.SOURCE:
                source = value
        return _new(
            Request,
            (command, passed, ttl_ms, correlation_id, remove, sow_key, client, sequence, acks, command_id, is_replay,
             source),
        )  # fmt: skip


@lru_cache(maxsize=64)
def ack_types(value: bytes) -> tuple[str, ...]:
    """The acknowledgements that a header `ack_type` lists, each once.

    Raises:
        RecordRejected: `bad_header`: a word that is none of them.
    """
    if len(value) > TEXT_BYTES_MAX:
        raise _bad(Name.ACK_TYPE, f"is {len(value)} bytes long; at most {TEXT_BYTES_MAX}")
    words = {word.strip() for word in text_of(Name.ACK_TYPE, value).split(",")}
    if unknown := sorted(words - {"none", *ACK_TYPES}):
        raise _bad(Name.ACK_TYPE, f"lists {unknown[0]!r:.100}; known: none, {', '.join(ACK_TYPES)}")
    return tuple(word for word in ACK_TYPES if word in words)


def text_of(name: str, value: bytes) -> str:
    """A header's text.

    Raises:
        RecordRejected: `bad_header`: not UTF-8.
    """
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _bad(name, f"is not UTF-8: {error.reason} at byte {error.start}") from None


def kind_of(body: Value) -> str:
    """A JSON value's kind as a person says it."""
    words = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    numbers = dict.fromkeys((int, float, Decimal), "a number")
    return (words | numbers).get(type(body)) or type(body).__name__


def _command(given: Mapping[str, bytes], default: str) -> str:
    """The command; Universal Messaging's flag is another way to say it."""
    command = None
    if Name.COMMAND in given:
        command = text_of(Name.COMMAND, given[Name.COMMAND])
        if command not in COMMANDS:
            raise RecordRejected("unknown_command", f"{command!r:.100}; known: {', '.join(sorted(COMMANDS))}")
    if Name.ALLOW_MERGE not in given:
        return command or default
    by_flag = _MERGE_COMMANDS.get(given[Name.ALLOW_MERGE])
    if by_flag is None:
        raise _bad(Name.ALLOW_MERGE, f"is {given[Name.ALLOW_MERGE]!r:.100}; it is true or false")
    if command is None:
        return by_flag
    if command not in (by_flag, "sow_delete"):
        raise _bad(Name.ALLOW_MERGE, f"means {by_flag}, but header {Name.COMMAND} says {command}")
    return command


def _sequence(value: bytes, *, has_client: bool) -> int:
    if _NUMBER.fullmatch(value) is None or (number := int(value)) > SEQUENCE_MAX:
        raise _bad(Name.SEQUENCE, f"is {value!r:.100}; it is an integer from 0 to {SEQUENCE_MAX}")
    if not has_client:
        raise _bad(Name.SEQUENCE, f"counts a publisher's records, and no header {Name.CLIENT} says whose")
    return number


def _base64(name: str, value: bytes) -> bytes:
    if _BASE64.fullmatch(value) is None:
        raise _bad(name, f"is {value!r:.100}; it is 1 to {TEXT_BYTES_MAX} characters of Base64: letters, digits, + / =")
    return value


def _short(name: str, value: bytes) -> bytes:
    text_of(name, value)
    if not 1 <= len(value) <= TEXT_BYTES_MAX:
        raise _bad(name, f"is {len(value)} bytes long; it is 1 to {TEXT_BYTES_MAX}")
    return value


def _array(name: str, value: bytes) -> list[Value]:
    try:
        parsed = json.loads(text_of(name, value))
    except (ValueError, RecursionError) as error:
        raise _bad(name, f"is not a JSON array: {error}") from None
    if type(parsed) is not list:
        raise _bad(name, f"is not a JSON array: it is {kind_of(parsed)}")
    return parsed


def _bad(name: str, said: str) -> RecordRejected:
    return RecordRejected("bad_header", f"header {name} {said}")
