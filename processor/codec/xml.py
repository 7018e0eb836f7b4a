"""XML, by expat: elements and attributes as members; no document type, so no entities."""

from __future__ import annotations

import re
from typing import Final, NoReturn
from xml.parsers import expat
from xml.sax.saxutils import escape

from processor.codec.contract import Codec, CodecOptions, empty_message
from processor.codec.value_checks import check_depth, depth_limit, text_of
from processor.errors import RecordRejected
from processor.record import Value
from processor.values import cached_by_text

ATTRIBUTE: Final = "@"
"""Before the name of an attribute."""
TEXT: Final = "#text"
"""The name of an element's text, where attributes or elements stand beside it."""
MARK: Final = "sowstream"
"""Target of the processing instruction that resolves ambiguities of plain XML."""

_MARKS: Final = frozenset(("array", "object"))

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


def is_name(name: Value) -> bool:
    """Return whether a parser takes it for the name of an element, and for nothing else."""
    return type(name) is str and _is_element(name)


@cached_by_text
def _is_element(name: str) -> bool:
    if name.startswith((ATTRIBUTE, "#")):
        return False
    seen: list[object] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda *element: seen.append(element)
    try:
        parser.Parse(f"<{name}/>".encode(), True)
    except (expat.ExpatError, UnicodeEncodeError):
        return False
    return seen == [(name, {})]


class XmlCodec(Codec):
    """The message type `xml`. A record is an object with one member, the root element.

    An element is a text, or an object where it has attributes (`@name`) or elements; the text beside them is `#text`.
    Elements of one name are an array, in order; how they were interleaved with others is not kept. Names keep their
    prefix as written. Texts are kept with their white space; white space alone beside elements is layout and dropped,
    as are comments and processing instructions.

    A processing instruction, which other readers skip, resolves ambiguities of plain XML: `<?sowstream array?>`
    in the only item of an array, `<?sowstream object?>` in an object that has nothing but text, or nothing at all.
    """

    def __init__(self, options: CodecOptions | None = None) -> None:
        """Make one that refuses messages nested deeper than the option `max_depth`."""
        self._max_depth = depth_limit((options or CodecOptions()).max_depth, "xml")

    def decode(self, data: bytes) -> Value:
        """Parse a message, in the encoding that its prolog declares, else UTF-8.

        Raises:
            RecordRejected: `undecodable`, with line and column, or `too_deep`.
        """
        reader = _Reader(self._max_depth)
        try:
            reader.parser.Parse(data, True)
        except expat.ExpatError as error:
            if not data:
                raise empty_message() from None
            raise RecordRejected("undecodable", f"not XML: {error}") from None
        except (ValueError, LookupError) as error:
            raise RecordRejected("undecodable", f"not XML: {error}; {reader.place()}") from None
        value = reader.root
        if 2 * reader.deepest > self._max_depth:  # An element is a level, and the array it stands in may be another.
            check_depth(value, self._max_depth)
        return value

    def decode_own(self, data: bytes) -> Value:
        """Parse a message that `encode` wrote; only there an empty one is a record without fields."""
        return self.decode(data) if data else {}

    def encode(self, value: Value) -> bytes:
        """Write a message in UTF-8, without prolog and layout.

        Raises:
            TypeError: null, an empty array, an array in an array, a name or a character that XML does not have.
        """
        try:
            return b"" if value == {} else write(value)
        except RecursionError:
            raise TypeError("nested deeper than can be written") from None


class _Reader:
    """Builds a value from the parser's events."""

    def __init__(self, max_depth: int) -> None:
        self.root: Value = {}
        self.deepest = 0
        self._max_depth = max_depth
        # Of each open element: its members, its text, its marks.
        self._open: list[tuple[Value, list[str], set[str] | None]] = [(self.root, [], None)]
        parser = self.parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.ordered_attributes = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.ProcessingInstructionHandler = self._instruction
        # Entities are declared nowhere else: neither do they grow, nor do they fetch anything.
        parser.StartDoctypeDeclHandler = self._doctype

    def place(self) -> str:
        """The parser's position."""
        return f"line {self.parser.CurrentLineNumber}, column {self.parser.CurrentColumnNumber}"

    def _start(self, _name: str, attributes: list[str]) -> None:
        if len(self._open) > self._max_depth:
            raise RecordRejected("too_deep", f"more than {self._max_depth} elements in one another; {self.place()}")
        members = {}
        if attributes:
            names = (ATTRIBUTE + name for name in attributes[::2])
            members = dict(zip(names, attributes[1::2], strict=True))
        self._open.append((members, [], None))
        self.deepest = max(self.deepest, len(self._open))

    def _end(self, name: str) -> None:
        members, texts, marks = self._open.pop()
        text = "".join(texts)
        value: Value = members
        if not members and (marks is None or "object" not in marks):
            value = text
        elif text and (text.strip(SPACES) or all(member.startswith(ATTRIBUTE) for member in members)):
            members[TEXT] = text
        parent = self._open[-1][0]
        if name not in parent:
            is_array = marks is not None and "array" in marks and parent is not self.root
            parent[name] = [value] if is_array else value
        elif type(parent[name]) is list:
            parent[name].append(value)
        else:
            parent[name] = [parent[name], value]

    def _text(self, text: str) -> None:
        self._open[-1][1].append(text)

    def _instruction(self, target: str, content: str) -> None:
        if target == MARK:
            members, texts, marks = self._open[-1]
            self._open[-1] = (members, texts, (marks or set()) | _MARKS.intersection(content.split()))

    def _doctype(self, *_declaration: object) -> NoReturn:
        raise RecordRejected("undecodable", f"a document type (DTD) is refused; {self.place()}")
