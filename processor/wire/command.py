"""What the headers of an input record ask for: one pass over them, each checked, the last of a name counts."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from processor.api import Headers, Name, RecordRejected, Value
from processor.record import OUR_HEADERS, TRAVELLING_HEADERS, Command
from processor.topics.family import KEY_BYTES_MAX as _KEY_BYTES_MAX
from processor.topics.family import PASSED_BYTES_MAX as _PASSED_BYTES_MAX
from processor.wire.expiration import ttl_ms_of

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT_BYTES_MAX: Final = 1024
"""Longest client, command id, correlation id and SOW key."""

KEY_BYTES_MAX: Final = _KEY_BYTES_MAX
"""Longest key of a record: it goes beside the record onto every topic, and into acks."""

SEQUENCE_MAX: Final = 2**63 - 1

PASSED_BYTES_MAX: Final = _PASSED_BYTES_MAX
"""Most that headers which travel on may have together: they go onto records that are larger than what brought them."""

ACK_TYPES: Final = ("received", "processed", "completed", "persisted", "stats")
"""What an `ack_type` may list, in the order in which they are sent."""

_READ: Final = frozenset((
    Name.COMMAND, Name.ALLOW_MERGE, Name.REMOVE, Name.EXPIRATION, Name.CLIENT, Name.SEQUENCE, Name.CORRELATION_ID,
    Name.SOW_KEY, Name.ACK_TYPE, Name.COMMAND_ID, Name.REPLAY_OF, Name.SOURCE, Name.EXPECT_VERSION,
))  # fmt: skip
_ALLOW_MERGE: Final = "allow_merge"
"""Universal Messaging's flag is read with `-` and with `_`."""
_NUMBER = re.compile(rb"[0-9]{1,19}")
_BASE64 = re.compile(rb"[A-Za-z0-9+/=]{1,1024}")
_COMMANDS: Final[Mapping[str, Command]] = {command: command for command in get_args(Command)}
_MERGE_COMMANDS: Final[Mapping[bytes, Command]] = {b"true": "delta_publish", b"false": "publish"}

# Request(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


class Request(NamedTuple):
    """What is asked of one record."""

    command: Command
    """The command, by header or by the topic's default."""
    passed: Headers
    """What travels on as it was sent."""
    expiration: bytes | None = None
    """Header `expiration`, seconds; None where there is none."""
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
    """Of a record that a worker forwarded to its own partition: where it came in."""
    expect_version: int = -1
    """The version that the record must have, 0 for no record; -1 where any will do."""


class RequestReader:
    """Reads requests as a topic's settings say."""

    def __init__(self, default_command: Command, codec_headers: frozenset[str] = frozenset()) -> None:
        """Create a reader.

        Args:
            default_command: the command of a record without header `command`.
            codec_headers: headers that are part of the message, for its message type alone to read.
        """
        self.plain: Final = Request(default_command, [])
        """The request of a record without headers."""
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
                if name == _ALLOW_MERGE:
                    given[Name.ALLOW_MERGE] = value or b""
                elif (meant := _misspelling_of(name)) is not None:
                    raise RecordRejected("bad_header", f"header {name!r:.100} is spelled {meant!r}")
                else:
                    passed.append(header)
        if passed and sum(len(name) + len(value or b"") for name, value in passed) > PASSED_BYTES_MAX:
            raise RecordRejected("too_large", f"its headers that travel on have more than {PASSED_BYTES_MAX} bytes")
        (command, _, expiration, correlation_id, remove, sow_key, client, sequence, acks, command_id, is_replay,
         source, expect_version) = self.plain  # fmt: skip
        if Name.COMMAND in given or Name.ALLOW_MERGE in given:
            command = _command(given, command)
        for name, value in given.items():
            if name == Name.REMOVE:
                remove = _array(name, value)
            elif name == Name.EXPIRATION:
                ttl_ms_of(value)
                expiration = value
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
            elif name == Name.EXPECT_VERSION:
                expect_version = _whole_number(name, value)
        return _new(
            Request,
            (command, passed, expiration, correlation_id, remove, sow_key, client, sequence, acks, command_id,
             is_replay, source, expect_version),
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


def _command(given: Mapping[str, bytes], default: Command) -> Command:
    """The command; Universal Messaging's flag is another way to say it."""
    command: Command | None = None
    if Name.COMMAND in given:
        text = text_of(Name.COMMAND, given[Name.COMMAND])
        command = _COMMANDS.get(text)
        if command is None:
            raise RecordRejected("unknown_command", f"{text!r:.100}; known: {', '.join(sorted(_COMMANDS))}")
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


def _letters(name: str) -> str:
    """A header name without case, `-` and `_`; leading underscores stay, as they mark names of another system."""
    bare = name.lstrip("_")
    return "_" * (len(name) - len(bare)) + bare.lower().replace("-", "").replace("_", "")


_SPELLINGS: Final[Mapping[str, str]] = {_letters(name): name for name in OUR_HEADERS | TRAVELLING_HEADERS}


@lru_cache(maxsize=1024)
def _misspelling_of(name: str) -> str | None:
    """The header of ours that a name differs from in case, `-` or `_` alone: passing it on would ignore a command."""
    ours = _SPELLINGS.get(_letters(name))
    return None if ours == name else ours


def _whole_number(name: str, value: bytes) -> int:
    if _NUMBER.fullmatch(value) is None or (number := int(value)) > SEQUENCE_MAX:
        raise _bad(name, f"is {value!r:.100}; it is an integer from 0 to {SEQUENCE_MAX}")
    return number


def _sequence(value: bytes, *, has_client: bool) -> int:
    number = _whole_number(Name.SEQUENCE, value)
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
