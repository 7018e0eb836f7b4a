"""The text of a SOW key, as messages, filters and files show it. Two different keys have two different texts."""

from __future__ import annotations

import re
from typing import Final

_LOOKS_ESCAPED: Final = re.compile(rb"\\(?=x(?:5c|[89a-f][0-9a-f]))")
_BACKSLASH: Final = rb"\x5c"


def text_of_key(key: bytes | None) -> str:
    r"""The text of a key: its UTF-8, with each byte that is not UTF-8 as an escape such as `\xff`.

    A backslash that would look like the beginning of such an escape is one itself, `\x5c`. So a key of valid UTF-8 is
    its own text, unless it has `\x5c` or `\x80` to `\xff` in it, spelled out in four characters.
    """
    if not key:
        return ""
    if b"\\x" in key:
        key = _LOOKS_ESCAPED.sub(lambda _: _BACKSLASH, key)
    return key.decode(errors="backslashreplace")
