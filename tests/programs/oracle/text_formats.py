"""Message types whose values are texts: NVFIX and FIX, XML; and composite-local, whose parts are of other types."""

from __future__ import annotations

from typing import Any, ClassVar
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape, quoteattr

from tests.programs.oracle.formats import Format, Json, Object
from tests.programs.oracle.values import Rejected, is_object

_SEPARATOR = "\x01"


class Nvfix(Format):
    """`name=value` fields; a name that repeats is an array. Its values are texts, and there is no null."""

    name = "nvfix"
    has_kinds = False
    has_null = False
    is_flat = True

    def read(self, data: bytes) -> Any:
        """The fields of a message."""
        record: Object = {}
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise Rejected("undecodable", str(error)) from None
        for field in text.split(_SEPARATOR):
            name, has_value, value = field.partition("=")
            if not field:
                continue
            if not has_value or not name:
                raise Rejected("undecodable", f"{field!r} is no field")
            if name in record:
                before = record[name]
                record[name] = [*(before if isinstance(before, list) else [before]), value]
            else:
                record[name] = value
        return record

    def write(self, value: Object) -> bytes:
        """The fields, each ended by the separator."""
        pairs = [
            (name, element)
            for name, member in value.items()
            for element in (member if isinstance(member, list) else [member])
        ]
        return "".join(f"{name}={element}{_SEPARATOR}" for name, element in pairs).encode()

    def stored(self, record: Object) -> Object:
        """An array of one is read as its element; a number of a plug-in is read as its text."""

        def text(value: Any) -> Any:
            if isinstance(value, list):
                return text(value[0]) if len(value) == 1 else [text(element) for element in value]
            return value if isinstance(value, str) else str(value)

        return {name: text(value) for name, value in record.items()}


class Fix(Nvfix):
    """FIX: as NVFIX, by tag numbers."""

    name = "fix"


class Xml(Format):
    """XML by ElementTree. An element is a text or an object; elements of one name are an array.

    The processing instructions `sowstream array` and `sowstream object` mark the structure that plain XML leaves open.
    """

    name = "xml"
    has_kinds = False
    has_null = False
    _MARKS: ClassVar[dict[str, str]] = {"array": "<?sowstream array?>", "object": "<?sowstream object?>"}

    def read(self, data: bytes) -> Any:
        """The root element as the only member of an object."""
        if not data:
            return {}
        parser = ET.XMLParser(target=ET.TreeBuilder(insert_pis=True))
        try:
            parser.feed(data)
            root = parser.close()
        except ET.ParseError as error:
            raise Rejected("undecodable", str(error)) from None
        return {root.tag: self._value(root)}

    def _value(self, element: ET.Element) -> Any:
        marks = {(child.text or "").partition(" ")[2] for child in element if child.tag is ET.PI}
        members: Object = {f"@{name}": value for name, value in element.attrib.items()}
        text = (element.text or "") + "".join(child.tail or "" for child in element)
        children = [child for child in element if child.tag is not ET.PI]
        if not members and not children and "object" not in marks:
            return text
        if text.strip():
            members["#text"] = text
        for child in children:
            value = self._value(child)
            if child.tag in members:
                before = members[child.tag]
                members[child.tag] = [*(before if isinstance(before, list) else [before]), value]
            else:
                members[child.tag] = [value] if self._is_only(child) else value
        return members

    @staticmethod
    def _is_only(element: ET.Element) -> bool:
        return any(child.tag is ET.PI and child.text == "sowstream array" for child in element)

    def write(self, value: Object) -> bytes:
        """The document."""
        return "".join(self._element(name, member) for name, member in value.items()).encode()

    def _element(self, name: str, value: Any, mark: str = "") -> str:
        if isinstance(value, list):
            only = self._MARKS["array"] if len(value) == 1 else ""
            return "".join(self._element(name, element, only) for element in value)
        if not is_object(value):
            return f"<{name}>{mark}{escape(str(value))}</{name}>"
        attributes = "".join(f" {n[1:]}={quoteattr(str(v))}" for n, v in value.items() if n.startswith("@"))
        inner = "".join(self._element(n, v) for n, v in value.items() if not n.startswith("@"))
        if not inner and not attributes:
            inner = self._MARKS["object"]
        return f"<{name}{attributes}>{mark}{inner}</{name}>"

    def stored(self, record: Object) -> Object:
        """A number of a plug-in is read as its text."""

        def text(value: Any) -> Any:
            if is_object(value):
                return {name: text(member) for name, member in value.items()}
            if isinstance(value, list):
                return [text(element) for element in value]
            return value if isinstance(value, str) else str(value)

        return text(record)


class Composite(Format):
    """composite-local of a JSON and an NVFIX part: each part is its length in four bytes, then its message."""

    name = "composite-local"
    has_kinds = False
    parts: ClassVar[dict[str, Format]] = {"0": Json(), "1": Nvfix()}

    def read(self, data: bytes) -> Any:
        """An object of parts by number; a part of length zero is absent."""
        record: Object = {}
        for number, part in self.parts.items():
            if not data:
                break
            size = int.from_bytes(data[:4])
            if len(data) < 4 + size:
                raise Rejected("undecodable", f"part {number} is cut off")
            if size:
                record[number] = part.read(data[4 : 4 + size])
            data = data[4 + size :]
        if data:
            raise Rejected("undecodable", "bytes after the last part")
        return record

    def write(self, value: Object) -> bytes:
        """Every part after its length."""
        written = [part.write(value[number]) if number in value else b"" for number, part in self.parts.items()]
        return b"".join(len(part).to_bytes(4) + part for part in written)

    def stored(self, record: Object) -> Object:
        """Each part as its own type reads it."""
        return {number: self.parts[number].stored(part) for number, part in record.items()}
