"""Writes a parsed XML message, so that `xml` reads the same value back."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from xml.parsers import expat
from xml.sax.saxutils import escape

from processor.codec.text_value import text_of
from processor.record import Value

ATTRIBUTE: Final = "@"
"""Before the name of an attribute."""
TEXT: Final = "#text"
"""The name of an element's text, where attributes or elements stand beside it."""
MARK: Final = "sowstream"
"""Target of the processing instruction that resolves ambiguities of plain XML."""

SPACES: Final = " \t\r\n"
_ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TEXT_ESCAPES: Final = {"\r": "&#13;"}
_ATTRIBUTE_ESCAPES: Final = {'"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}


def write(value: Value) -> bytes:
    """A record with its one root element, in UTF-8, without prolog.

    Raises:
        TypeError: a value that XML cannot express; the message names the path.
    """
    if type(value) is not dict or len(value) != 1:
        raise TypeError("an XML record is an object with one member, the root element")
    parts: list[str] = []
    for name, member in value.items():
        if type(member) is list:
            raise TypeError(f"/{name} is an array; there is one root element")
        _element(parts, name, member, f"/{name}")
    return "".join(parts).encode()


def _member(parts: list[str], name: Value, value: Value, path: str) -> None:
    """One element, or one for each item of an array."""
    if type(value) is not list:
        _element(parts, name, value, path)
        return
    if not value:
        raise TypeError(f"{path} is an empty array, which XML cannot write; leave it out")
    for item in value:
        if type(item) is list:
            raise TypeError(f"{path} is an array in an array, which XML cannot write")
        _element(parts, name, item, path, "array" if len(value) == 1 else "")


def _element(parts: list[str], name: Value, value: Value, path: str, mark: str = "") -> None:
    """An element with all that is in it."""
    if not is_name(name):
        raise TypeError(f"{path}: {name!r} is no name of an XML element")
    parts.append(f"<{name}")
    if type(value) is not dict:
        content = _escaped(text_of(value, path), path, _TEXT_ESCAPES)
        parts.append(f">{_instruction([mark] * bool(mark))}{content}</{name}>")
        return
    text = ""
    children = []
    is_marked = True
    for member_name, member in value.items():
        place = f"{path}/{member_name}"
        if type(member_name) is str and member_name.startswith(ATTRIBUTE):
            attribute = member_name[1:]
            if not is_name(attribute):
                raise TypeError(f"{place}: {attribute!r} is no name of an XML attribute")
            parts.append(f' {attribute}="{_escaped(text_of(member, place), place, _ATTRIBUTE_ESCAPES)}"')
            is_marked = False
        elif member_name == TEXT:
            text = text_of(member, place)
            if not text:
                raise TypeError(f"{place} is empty, which XML cannot tell from none; leave it out")
        else:
            children.append((member_name, member, place))
    if children and text and not text.strip(SPACES):
        raise TypeError(f"{path}/{TEXT} is white space beside elements, which says nothing; leave it out")
    # Nothing in the element would tell a reader that it is an object.
    marks = [mark] * bool(mark) + ["object"] * (is_marked and not children)
    parts.append(f">{_instruction(marks)}{_escaped(text, path, _TEXT_ESCAPES)}")
    for child in children:
        _member(parts, *child)
    parts.append(f"</{name}>")


def _instruction(marks: list[str]) -> str:
    return f"<?{MARK} {' '.join(marks)}?>" if marks else ""


def _escaped(text: str, path: str, escapes: dict[str, str]) -> str:
    if found := _ILLEGAL.search(text):
        raise TypeError(f"{path} holds {found.group()!r}, a character that XML does not have")
    return escape(text, escapes)


@lru_cache(maxsize=4096)
def is_name(name: Value) -> bool:
    """Return whether a parser takes it for the name of an element, and for nothing else."""
    if type(name) is not str or name.startswith((ATTRIBUTE, "#")):
        return False
    seen: list[object] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda *element: seen.append(element)
    try:
        parser.Parse(f"<{name}/>".encode(), True)
    except (expat.ExpatError, UnicodeEncodeError):
        return False
    return seen == [(name, {})]
