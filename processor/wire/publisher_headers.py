"""The headers of a command, as publishers write them; `processor.wire.command` reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from processor.errors import ConfigurationError, RecordRejected
from processor.wire.ack import TEXT_BYTES_MAX
from processor.wire.headers import HEAL, NUMBER_END, OUR_HEADERS, TRAVELLING_HEADERS, UNREADABLE_NAME, Name
from processor.wire.record_headers import command_header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from processor.record import Header, Headers

_ARGUMENTS: Final[Mapping[str, str]] = {
    Name.COMMAND: "call publish, delta_publish or sow_delete",
    Name.SOW_KEY: "give key=",
    Name.CLIENT: "it goes with sequence=, and is the client's name",
    Name.SEQUENCE: "give sequence=",
    Name.ACK_TYPE: "give ack=",
    Name.COMMAND_ID: "give command_id=",
    Name.EXPECT_VERSION: "give expect_version=",
}
"""Headers that have an argument of their own, with the advice to use it."""

_ALLOWED: Final = frozenset((Name.REMOVE, Name.EXPIRATION, Name.CORRELATION_ID, Name.FIELDS, Name.ALLOW_MERGE))
"""Headers of ours that a publisher may give by name."""

_OF_ONE_UPDATE: Final = OUR_HEADERS | TRAVELLING_HEADERS
"""Headers of a SOW record that belong to the update that wrote it."""

_OF_THE_RECORD: Final = (Name.EXPIRATION, Name.GROUP_STAMPS)
"""Headers of a SOW record that a second publish of it takes along."""

_BASE64: Final = re.compile(r"[A-Za-z0-9+/=]{1,1024}")
_UNSENDABLE: Final = re.compile(f"[\0\ud800-\udfff{UNREADABLE_NAME}]")
"""Characters of a header name that UTF-8 does not have, or that end or replace the name for a reader."""

_EXPIRATION_S_MAX: Final = 100 * 365 * 86_400


def encoded(text: str, place: str) -> bytes:
    """Return the bytes of a text that a publisher gives.

    Args:
        text: the text.
        place: what it is, for the error, such as `key`.

    Raises:
        ConfigurationError: it has half a surrogate pair, which UTF-8 does not have. Python makes one of each byte of an
            argument of a command line that is not UTF-8.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"{place}: {text!r:.100} is not UTF-8 text, from character {error.start + 1} on"
        ) from None


def named_headers(headers: Mapping[str, str | bytes]) -> Headers:
    """Return the headers that a caller gives by name.

    Raises:
        ConfigurationError: a header that is not a publisher's to give, that has an argument of its own, or that is no
            text.
    """
    checked: Headers = []
    for name, value in headers.items():
        # Callers without a type checker pass anything.
        if not isinstance(name, str):
            raise ConfigurationError(f"the header name {name!r:.100} is no text")
        if not isinstance(value, str | bytes):
            raise ConfigurationError(f"the value of header {name!r:.100} is {value!r:.100}; it is a text or bytes")
        if name in _ARGUMENTS:
            raise ConfigurationError(f"header {name!r} is not given by name; {_ARGUMENTS[name]}")
        if _UNSENDABLE.search(name):
            raise ConfigurationError(f"header {name!r:.100}: a name is text without NUL, which every reader can read")
        if name in OUR_HEADERS and name not in _ALLOWED:
            raise ConfigurationError(f"header {name!r} is Sowstream's own; a publisher cannot set it")
        checked.append((name, value if isinstance(value, bytes) else encoded(value, f"header {name}")))
    return checked


def text_key_header(kafka_topic: str) -> Header:
    """Return the header that marks a Kafka key as text, on a topic whose publishers write keys in another format."""
    return Name.SOURCE, f"{kafka_topic}/".encode()


def healed_key_header(kafka_topic: str) -> Header:
    """Return the header of a command of `sowstream topics heal`.

    It marks the Kafka key as text, and keeps a command for a version in the partition that it is sent to.
    """
    return Name.SOURCE, f"{kafka_topic}/{HEAL}".encode()


def time_to_live_header(expiration_s: float) -> Header:
    """Return header `expiration`: seconds as a decimal number; a time that is not 0 does not become 0.

    Raises:
        RecordRejected: `bad_header`: the time is out of range.
    """
    is_number = isinstance(expiration_s, int | float)  # Callers without a type checker pass anything.
    if not is_number or not 0 <= expiration_s <= _EXPIRATION_S_MAX:
        raise RecordRejected(
            "bad_header",
            f"expiration is {expiration_s!r:.100}; it is seconds to live, such as 300, up to a hundred years, or 0 for "
            "never",
        )
    if expiration_s == int(expiration_s):
        return Name.EXPIRATION, b"%d" % int(expiration_s)
    return Name.EXPIRATION, f"{max(expiration_s, 1e-9):.9f}".encode()


def correlation_header(correlation_id: str) -> Header:
    """Return header `correlation_id`.

    Raises:
        RecordRejected: `bad_header`: the id is not Base64.
    """
    if _BASE64.fullmatch(correlation_id) is None:
        raise RecordRejected(
            "bad_header",
            f"correlation_id is {correlation_id!r:.100}; it is 1 to 1024 characters of Base64: letters, digits, + / =",
        )
    return Name.CORRELATION_ID, correlation_id.encode()


def command_id_header(command_id: str) -> Header:
    """Return header `command_id`.

    Raises:
        RecordRejected: `bad_header`: the id is empty or too long.
        ConfigurationError: it is not UTF-8.
    """
    text = encoded(command_id, Name.COMMAND_ID)
    if not 0 < len(text) <= TEXT_BYTES_MAX:
        raise RecordRejected("bad_header", f"command_id is {len(text)} bytes long; it is 1 to {TEXT_BYTES_MAX}")
    return Name.COMMAND_ID, text


def sequence_headers(client: str, sequence: int) -> Headers:
    """Return the headers that number a publisher's command.

    Raises:
        ConfigurationError: the client's name is not UTF-8.
    """
    return [(Name.CLIENT, encoded(client, "the client's name")), (Name.SEQUENCE, b"%d" % sequence)]


def ack_type_header(types: Sequence[str]) -> Header:
    """Return the header that asks for acks of these types."""
    return Name.ACK_TYPE, ",".join(types).encode()


def delete_by_filter_headers(text: str) -> Headers:
    """Return the headers of a delete of all records that a filter finds.

    Raises:
        ConfigurationError: the filter is not UTF-8.
    """
    return [command_header("sow_delete"), (Name.FILTER, encoded(text, Name.FILTER))]


def expect_version_header(version: int) -> Header:
    """Return the header with the version that the record must have; 0: there must be none.

    Raises:
        RecordRejected: `bad_header`: no version is such a number.
    """
    is_number = isinstance(version, int)  # Callers without a type checker pass anything.
    if not is_number or not 0 <= version < NUMBER_END:
        raise RecordRejected(
            "bad_header", f"expect_version is {version!r:.100}; it is a record's version, or 0 for no record"
        )
    return Name.EXPECT_VERSION, b"%d" % version


class HeaderArgument(NamedTuple):
    """An argument of the publishing calls that travels to the worker as a header of the same name."""

    kind: type[str | int | float]
    """The type of its value."""
    write: Callable[[Any], Header]
    """Returns the header of a value; raises RecordRejected for a value that is out of range."""
    is_for_deletes: bool = True
    """True if `sow_delete` has it."""
    is_for_gateways: bool = True
    """True if a request to a gateway has it."""


HEADER_ARGUMENTS: Final[Mapping[str, HeaderArgument]] = {
    Name.EXPIRATION: HeaderArgument(float, time_to_live_header, is_for_deletes=False),
    Name.CORRELATION_ID: HeaderArgument(str, correlation_header),
    # A gateway's acks have the id of the request.
    Name.COMMAND_ID: HeaderArgument(str, command_id_header, is_for_gateways=False),
    Name.EXPECT_VERSION: HeaderArgument(int, expect_version_header),
}
"""The arguments that become headers, for the client, the command line, requests to a gateway and OpenAPI."""

GATEWAY_ARGUMENTS: Final[Mapping[str, HeaderArgument]] = {
    name: argument for name, argument in HEADER_ARGUMENTS.items() if argument.is_for_gateways
}
"""Those that a request to a gateway has."""


def published_again(headers: Headers, dropped: frozenset[str]) -> Headers:
    """Return the headers of a SOW record that go with a second publish of it.

    They are the publisher's own, and the record's own time to live and group stamps, not those of the update that wrote
    the record.

    Args:
        headers: the SOW record's.
        dropped: headers to leave out besides ours.
    """
    return [
        header
        for header in headers
        if header[0] in _OF_THE_RECORD or (header[0] not in _OF_ONE_UPDATE and header[0] not in dropped)
    ]


def replay_headers(headers: Headers, source: str) -> Headers:
    """Return the headers of a dead letter's input record that is sent again; `source` is its place in the input.

    A header whose name is not UTF-8 is left out: its name is lost, and with it the record would be rejected again.
    """
    kept = [header for header in headers if header[0] != Name.REPLAY_OF and UNREADABLE_NAME not in header[0]]
    return [*kept, (Name.REPLAY_OF, source.encode())]
