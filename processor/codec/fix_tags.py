"""Facts of FIX about its own tags: the data fields behind a length, and the character sets of messages."""

from __future__ import annotations

import codecs
import re
from functools import lru_cache
from typing import Final

MESSAGE_ENCODING: Final = "347"
"""The tag MessageEncoding: the character set of a message's texts."""

DATA_TAGS: Final = {
    "90": "91", "93": "89", "95": "96", "212": "213", "348": "349", "350": "351", "352": "353", "354": "355",
    "356": "357", "358": "359", "360": "361", "362": "363", "364": "365", "445": "446", "618": "619", "621": "622",
    "1184": "1185", "1277": "1278", "1280": "1281", "1282": "1283", "1359": "1360", "1397": "1398", "1401": "1402",
    "1403": "1404", "1468": "1469", "1618": "1619", "1620": "1621",
}  # fmt: skip
"""The data fields of FIX 4.0 to 5.0 SP2, by the tag of the field in front of each, which has its length in bytes."""

LENGTH_TAGS: Final = {data: length for length, data in DATA_TAGS.items()}
"""The same the other way round."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,39}", re.ASCII)
_ASCII: Final = (rb"\u0061", bytes(range(0x20, 0x7F)) + b"\x01\t\r\n")


@lru_cache(maxsize=64)
def python_encoding(name: str) -> str | None:
    """Python's name of a character set by the value of tag 347, such as `ISO-8859-1`; None if it cannot be used.

    An encoding of messages leaves ASCII as it is, as tags and separators are ASCII: UTF-16 and UTF-7 are none.
    """
    if _NAME.fullmatch(name) is None:
        return None
    try:
        info = codecs.lookup(name)
        is_ascii = all(data.decode(info.name) == data.decode("ascii") for data in _ASCII)
        is_ascii = is_ascii and "a".encode(info.name) == b"a"  # And not a byte order mark in front.
    except (LookupError, ValueError, TypeError):
        return None
    return info.name if is_ascii and info.name != "idna" else None


def encoded_beginning(text: str, size: int, encoding: str) -> str | None:
    """The beginning of a text that has so many bytes in an encoding; None if there is none."""
    part = text[:size]  # A character has a byte at least.
    data = part.encode(encoding)
    if len(data) == size:
        return part
    try:
        return data[:size].decode(encoding) if len(data) > size else None
    except UnicodeDecodeError:
        return None
