"""Third parties' plug-ins for the delta merge, and message types of unusual kinds, as an installer leaves them."""

from __future__ import annotations

import json
from pathlib import Path

from processor.api import Preprocessed
from processor.codec import Codec
from processor.codec.json import JsonCodec
from processor.errors import RecordRejected

ENTRY_POINTS = {
    "sowstream.preprocessors": {
        "upper_id": "upper_id",
        "tag": "tag",
        "fails": "fails",
        "nothing": "nothing",
        "refuses": "refuses",
        "commands": "commands",
        "fussy": "fussy",
        "no_function": "no_function",
        "gone": "not_there",
    },
    "sowstream.enrichers": {
        "total": "total",
        "spoil": "spoil",
        "rename": "rename",
        "fails": "fails",
        "nothing": "nothing",
        "unwritable": "unwritable",
    },
    "sowstream.merge_rules": {"net": "net"},
    "sowstream.codecs": {
        "whole": "Whole",
        "bytes": "Bytes",
        "labelled": "Labelled",
        "fragile": "Fragile",
        "brittle": "Brittle",
        "required": "Required",
    },
}


def install(site: Path) -> None:
    """Write the files of an installed package."""
    info = site / "unusual-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: unusual\nVersion: 1.0\n")
    lines = []
    for group, points in ENTRY_POINTS.items():
        lines += [f"[{group}]", *(f"{name} = {__name__}:{target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def upper_id():
    """The key in capitals."""
    return lambda message: message | {"id": message["id"].upper()} if "id" in message else message


def tag(*, field="tags", text):
    """Adds a text to a list of the message."""
    return lambda message: message | {field: [*message.get(field, []), text]}


def fails():
    """Trips over the member `bad`."""

    def step(message, previous=None):
        if "bad" in message:
            raise ValueError("it is bad")
        return message

    return step


def refuses():
    """Rejects every message with a reason of its own."""

    def step(message):
        raise RecordRejected("schema_mismatch", "not today")

    return step


def commands():
    """Takes the command from the member `op`."""
    return lambda message: Preprocessed(message, message.pop("op"))


def nothing():
    """Forgets to return."""
    return lambda *arguments: None


def fussy():
    """Does not like its settings."""
    raise OSError("no such table")


def no_function():
    """Makes nothing that could be called."""
    return 7


def total(*, field="total"):
    """The price of the full record, made of the fields of the delta and of the record."""

    def step(message, previous):
        known = (previous or {}) | message
        return message | {field: known["price"] * known["qty"]}

    return step


def spoil():
    """Changes its arguments."""

    def step(message, previous):
        for name in list(previous or ()):
            previous[name] = {"spoilt": True}
        return dict(message)

    return step


def rename():
    """Another key than the record's."""
    return lambda message, previous: message | {"id": "other"}


def unwritable():
    """Values that JSON does not have."""
    return lambda message, previous: message | {"a": {1, 2}}


def net(old, new):
    """A merge rule: the positions of a book, of which those that are zero are closed."""
    totals = {name: old.get(name, 0) + (new.get(name) or 0) for name in {**old, **new}}
    return {name: total for name, total in totals.items() if total}


class Fragile(JsonCodec):
    """A message type of JSON that ignores the contract for errors."""

    def decode(self, data):
        """Trip over the word `trip`."""
        if b"trip" in data:
            raise ValueError("tripped")
        return super().decode(data)


class Brittle(JsonCodec):
    """A message type of JSON that checks everything, its own results included."""

    def decode_own(self, data):
        """Trip over the word `trip`."""
        if b"trip" in data:
            raise ValueError("tripped")
        return super().decode_own(data)


class Whole(JsonCodec):
    """JSON in full messages only."""

    can_delta = False


class Bytes(Codec):
    """Anything at all."""

    can_delta = False

    def __init__(self, options):
        pass

    def decode(self, data):
        """As it is."""
        return data

    def encode(self, value):
        """As it is."""
        return value


class Required(JsonCodec):
    """JSON objects that cannot be written without a price, as protobuf's required fields."""

    can_delta = False

    def encode(self, value):
        """Only whole."""
        if "price" not in value:
            raise TypeError("price is required")
        return super().encode(value)


class Labelled(JsonCodec):
    """JSON objects whose field names are in a header: a body is the array of their values."""

    uses_headers = True
    header_names = frozenset({"labels"})

    def decode_command(self, data, headers, *, is_delta):
        """The values by their names; a whole record has an id."""
        given = dict(headers)
        names = json.loads(given.get("labels", b"null"))
        if names is None:
            raise RecordRejected("bad_header", "no header labels")
        if not is_delta and "id" not in names:
            raise RecordRejected("schema_mismatch", "a whole record has an id")
        return dict(zip(names, super().decode(data), strict=True))

    def encode_delta(self, delta):
        """The values, and their names in a header."""
        return self.encode(list(delta.values())), [("labels", json.dumps(list(delta)).encode())]
