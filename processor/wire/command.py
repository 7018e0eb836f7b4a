"""The headers of a command, as workers read them: one pass over them, each checked; the last of a name counts.

`processor.wire.publisher_headers` writes them.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from processor.errors import RecordRejected
from processor.record import Command, Headers, Value
from processor.topics.family import KEY_BYTES_MAX as _KEY_BYTES_MAX
from processor.topics.family import PASSED_BYTES_MAX as _PASSED_BYTES_MAX
from processor.values import cached_by_text
from processor.wire.ack import ACK_TYPES, TEXT_BYTES_MAX
from processor.wire.forwarding import is_mended
from processor.wire.headers import (
    HEAL,
    NUMBER_END,
    OUR_HEADERS,
    TRAVELLING_HEADERS,
    UNREADABLE_NAME,
    Name,
    last_value,
    read_number,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.record import Record

KEY_BYTES_MAX: Final = _KEY_BYTES_MAX
"""Longest key of a record: it goes beside the record onto every topic, and into acks."""

SEQUENCE_MAX: Final = NUMBER_END - 1

TTL_MS_MAX: Final = 100 * 365 * 86_400_000
"""Longest life of a record that is not for ever: a hundred years."""

PASSED_BYTES_MAX: Final = _PASSED_BYTES_MAX
"""Most bytes of all headers that travel on: the records that they go onto are larger than the command."""

_READ: Final = frozenset((
    Name.COMMAND, Name.ALLOW_MERGE, Name.REMOVE, Name.EXPIRATION, Name.CLIENT, Name.SEQUENCE, Name.CORRELATION_ID,
    Name.SOW_KEY, Name.ACK_TYPE, Name.COMMAND_ID, Name.REPLAY_OF, Name.SOURCE, Name.EXPECT_VERSION, Name.GROUP_STAMPS,
))  # fmt: skip
_ALLOW_MERGE: Final = "allow_merge"
"""Universal Messaging's flag is read with `-` and with `_`."""
_HEAL_END: Final = f"/{HEAL}".encode()
_SECONDS = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_BASE64 = re.compile(rb"[A-Za-z0-9+/=]{1,1024}")
_COMMANDS: Final[Mapping[str, Command]] = {command: command for command in get_args(Command)}
_MERGE_COMMANDS: Final[Mapping[bytes, Command]] = {b"true": "delta_publish", b"false": "publish"}

# CommandHeaders(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


class CommandHeaders(NamedTuple):
    """A command: the headers of one input record, checked and parsed."""

    command: Command
    """The change that the publisher asks for, by header or by the topic's default."""
    passed: Headers
    """The headers that travel on as they were sent."""
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
    group_stamps: bytes = b""
    """The stamps of the full record of a `sowstream topics heal`; empty in all other commands."""

    @property
    def is_mended(self) -> bool:
        """True for a forwarded command whose number was refused where it came in, so that it was not taken here."""
        return is_mended(self.source)

    @property
    def is_for_copy(self) -> bool:
        """True for a command of `sowstream topics heal` on a record in the partition that it was sent to."""
        return self.expect_version > 0 and self.source.endswith(_HEAL_END)


class CommandReader:
    """Reads the commands of a topic."""

    def __init__(self, default_command: Command, codec_headers: frozenset[str] = frozenset()) -> None:
        """Create a reader.

        Args:
            default_command: the command of a record without header `command`.
            codec_headers: headers that are part of the message, for its message type alone to read.
        """
        self.plain: Final = CommandHeaders(default_command, [])
        """The command of a record without headers."""
        self._dropped = OUR_HEADERS | codec_headers

    def read(self, headers: Headers) -> CommandHeaders:
        """Check and parse the headers of an input record.

        Raises:
            RecordRejected: `bad_header` or `unknown_command`, naming the header.
        """
        values: dict[str, bytes] = {}
        passed: Headers = []
        for header in headers:
            name, value = header
            if name in _READ:
                values[name] = value or b""
                if name in TRAVELLING_HEADERS:
                    passed.append(header)
            elif name not in self._dropped:
                if name == _ALLOW_MERGE:
                    values[Name.ALLOW_MERGE] = value or b""
                elif (problem := _problem_of(name)) is not None:
                    raise RecordRejected("bad_header", f"header {name!r:.100} {problem}")
                else:
                    passed.append(header)
        if passed and sum(len(name) + len(value or b"") for name, value in passed) > PASSED_BYTES_MAX:
            raise RecordRejected("too_large", f"its headers that travel on have more than {PASSED_BYTES_MAX} bytes")
        (command, _, expiration, correlation_id, remove, sow_key, client, sequence, acks, command_id, is_replay,
         source, expect_version, group_stamps) = self.plain  # fmt: skip
        if Name.COMMAND in values or Name.ALLOW_MERGE in values:
            command = _command(values, command)
        for name, value in values.items():
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
                sequence = _sequence(value, has_client=Name.CLIENT in values)
            elif name == Name.ACK_TYPE:
                acks = ack_types(value)
            elif name == Name.REPLAY_OF:
                is_replay = True
            elif name == Name.SOURCE:
                source = value
            elif name == Name.EXPECT_VERSION:
                expect_version = _whole_number(name, value)
            elif name == Name.GROUP_STAMPS:
                # A worker's mark on SOW records: of no publisher's.
                group_stamps = value if values.get(Name.SOURCE, b"").endswith(_HEAL_END) else b""
        return _new(
            CommandHeaders,
            (command, passed, expiration, correlation_id, remove, sow_key, client, sequence, acks, command_id,
             is_replay, source, expect_version, group_stamps),
        )  # fmt: skip


@lru_cache(maxsize=64)
def ack_types(value: bytes) -> tuple[str, ...]:
    """Parse a header `ack_type`: the acks that it lists, each once.

    Raises:
        RecordRejected: `bad_header`: a word that is none of them.
    """
    if len(value) > TEXT_BYTES_MAX:
        raise _bad(Name.ACK_TYPE, f"is {len(value)} bytes long; at most {TEXT_BYTES_MAX}")
    words = {word.strip() for word in text_of(Name.ACK_TYPE, value).split(",")}
    if unknown := sorted(words - {"none", *ACK_TYPES}):
        raise _bad(Name.ACK_TYPE, f"lists {unknown[0]!r:.100}; known: none, {', '.join(ACK_TYPES)}")
    return tuple(word for word in ACK_TYPES if word in words)


@lru_cache(maxsize=256)
def ttl_ms_of(header: bytes) -> int:
    """Convert a header `expiration` to milliseconds, rounded up: no record expires early.

    Raises:
        RecordRejected: `bad_header`: not a number of seconds, or too many.
    """
    if _SECONDS.fullmatch(header) is None:
        raise RecordRejected(
            "bad_header",
            f"header {Name.EXPIRATION} is {header!r:.100}; it is a number of seconds such as 60 or 0.5, or 0 for ever",
        )
    milliseconds = math.ceil(Decimal(header.decode()) * 1000)
    if milliseconds > TTL_MS_MAX:
        raise RecordRejected(
            "bad_header",
            f"header {Name.EXPIRATION} is {header.decode()}; at most {TTL_MS_MAX // 1000} seconds, or 0 for ever",
        )
    return milliseconds


def text_of(name: str, value: bytes) -> str:
    """Decode a header.

    Raises:
        RecordRejected: `bad_header`: not UTF-8.
    """
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _bad(name, f"is not UTF-8: {error.reason} at byte {error.start}") from None


def kind_of(body: Value) -> str:
    """Return the kind of a JSON value in words: `an object`, `a number`."""
    words = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    numbers = dict.fromkeys((int, float, Decimal), "a number")
    return (words | numbers).get(type(body)) or type(body).__name__


def _command(values: Mapping[str, bytes], default: Command) -> Command:
    """Return the command, by its header or by Universal Messaging's flag."""
    command: Command | None = None
    if Name.COMMAND in values:
        text = text_of(Name.COMMAND, values[Name.COMMAND])
        command = _COMMANDS.get(text)
        if command is None:
            raise RecordRejected("unknown_command", f"{text!r:.100}; known: {', '.join(sorted(_COMMANDS))}")
    if Name.ALLOW_MERGE not in values:
        return command or default
    by_flag = _MERGE_COMMANDS.get(values[Name.ALLOW_MERGE])
    if by_flag is None:
        raise _bad(Name.ALLOW_MERGE, f"is {values[Name.ALLOW_MERGE]!r:.100}; it is true or false")
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


@cached_by_text
def _problem_of(name: str) -> str | None:
    """The reason why a header of this name, which is none of ours, cannot travel on; None if it can.

    A name that differs from one of ours in case, `-` or `_` alone is a command that passing it on would ignore.
    """
    if UNREADABLE_NAME in name:
        return "has a name that is not UTF-8"
    ours = _SPELLINGS.get(_letters(name))
    return None if ours in (None, name) else f"is spelled {ours!r}"


def _whole_number(name: str, value: bytes) -> int:
    if (number := read_number(value)) is None:
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


def _bad(name: str, problem: str) -> RecordRejected:
    return RecordRejected("bad_header", f"header {name} {problem}")


def read_numbered(record: Record) -> CommandHeaders | None:
    """Read the client and the number of a command that was rejected; None where there are none, or none that count."""
    if not record.headers:
        return None
    by_name: dict[str, bytes] = {name: value or b"" for name, value in record.headers}
    client, sequence = by_name.get(Name.CLIENT, b""), read_number(by_name.get(Name.SEQUENCE))
    try:
        if sequence is None or not _short(Name.CLIENT, client):
            return None
    except RecordRejected:
        return None
    source = by_name.get(Name.SOURCE, b"")
    return CommandHeaders("publish", [], client=client, sequence=sequence, source=source)


def is_delete_by_filter(record: Record) -> bool:
    """True if a record without a key asks for a delete by filter; on other commands `filter` is a publisher's own."""
    headers = dict(record.headers or ())
    return Name.FILTER in headers and (record.value is None or headers.get(Name.COMMAND) == b"sow_delete")


def has_filter(record: Record) -> bool:
    """Return whether a record has a header `filter`."""
    return bool(record.headers) and Name.FILTER in dict(record.headers or ())


def filter_text(record: Record) -> str:
    """Return the filter of a delete by filter.

    Raises:
        RecordRejected: `bad_header`: it is not UTF-8.
    """
    return text_of(Name.FILTER, last_value(record.headers, Name.FILTER) or b"")


def without_filter(headers: Headers) -> Headers:
    """Return the headers of a delete by filter that travel on with each record it deletes."""
    return [header for header in headers if header[0] != Name.FILTER]


def is_heal(headers: Headers) -> bool:
    """Return whether headers are those of a command of `sowstream topics heal`."""
    return (last_value(headers, Name.SOURCE) or b"").endswith(_HEAL_END)


def was_forwarded(record: Record, own_source: bytes) -> bool:
    """Return whether a worker, or a client that writes keys as text, has marked the key of an input record as text.

    Args:
        record: the input record.
        own_source: the input topic and a `/`, with which the header `source` of such a record begins.
    """
    return any(name == Name.SOURCE and (value or b"").startswith(own_source) for name, value in record.headers or ())
