"""XML, by expat: elements and attributes as members; no document type, so no entities."""

from __future__ import annotations

from typing import NoReturn
from xml.parsers import expat

from processor.codec import xml_writer
from processor.codec.contract import Codec, CodecOptions, empty_message
from processor.codec.depth import check_depth, depth_limit
from processor.codec.xml_writer import ATTRIBUTE, MARK, SPACES, TEXT
from processor.errors import RecordRejected
from processor.record import Value


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
            return b"" if value == {} else xml_writer.write(value)
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
            self._open[-1] = (members, texts, (marks or set()) | set(content.split()))

    def _doctype(self, *_declaration: object) -> NoReturn:
        raise RecordRejected("undecodable", f"a document type (DTD) is refused; {self.place()}")
