"""Messages that are as slow to decode as their type allows, and fuzzed ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Final

import bson
import msgpack

MIB: Final = 1 << 20
"""Bytes in a mebibyte."""

_PIECE_BYTES_MAX: Final = 4096


def varint(number: int) -> bytes:
    """Encode a number as a varint: groups of seven bits, lowest first."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def zigzag(number: int) -> bytes:
    """Encode a signed number of 64 bits as Avro does."""
    return varint(((number << 1) ^ (number >> 63)) & (2**64 - 1))


def texts_of_json(size: int) -> dict[str, bytes]:
    """JSON texts that are slow to decode, by name."""
    many = size // 3
    return {
        "empty arrays": b"[" + b"[]," * many + b"[]]",
        "empty objects": b"[" + b"{}," * many + b"{}]",
        "spaced empty objects": b"[" + b"{} ," * (size // 4) + b"{}]",
        "small objects": b"[" + b'{"a":{}},' * (size // 9) + b"{}]",
        "nested arrays": b"[" * (size // 2) + b"]" * (size // 2),
        "nested arrays, open": b"[" * size,
        "nested objects": b'{"":' * (size // 5) + b"0" + b"}" * (size // 5),
        "groups of nested arrays": b"[" + b",".join([b"[" * 120 + b"]" * 120] * (size // 241)) + b"]",
        "long integer": b"1" * size,
        "long fraction": b"0." + b"1" * size,
        "long exponent": b"1e" + b"9" * size,
        "long negative exponent": b"1e-" + b"9" * size,
        "long integer in an object": b'{"a":' + b"7" * size + b"}",
        "many integers of 20 digits": b"[" + b"99999999999999999999," * (size // 21) + b"1]",
        "many doubles that are cut": b"[" + b"0.12345678901234567," * (size // 20) + b"1]",
        "many tiny exponents": b"[" + b"1e-400," * (size // 7) + b"1]",
        "many infinities": b"[" + b"1e999," * (size // 6) + b"1]",
        "many infinities and arrays": b"[1e999" + b",[]" * (size // 3) + b"]",
        "many arrays, then an infinity": b"[" + b"[]," * (size // 3) + b"1e999]",
        "many infinities, then rubbish": b"[" + b"1e999," * (size // 6) + b"x",
        "digits in a string": b'["' + b"1234567890." * (size // 11) + b'",0.12345678901234567890]',
        "spaced digits in a string": b'[ "' + b"1e-1000 " * (size // 8) + b'"]',
        "dots and digits in a string": b'[ "' + b"0.1.2.3.4.5.6.7.8.9." * (size // 20) + b'"]',
        "one name": b"{" + b'"a":0,' * (size // 6) + b'"a":0}',
        "many names": b"{" + b",".join(b'"%d":0' % number for number in range(size // 10)) + b"}",
        "names with escapes": b"{" + rb'"\u0000":0,' * (size // 11) + b'"a":0}',
        "escapes": b'"' + rb"\u00e4" * (size // 6) + b'"',
        "open string": b'"' + b"a" * size,
        "open string of escapes": b'["' + rb"\"" * (size // 2),
        "quotes and brackets, then rubbish": b"[" * 200 + b'"[",' * (size // 4) + b"x",
        "backslashes": b"\\" * size,
        "spaces": b" " * size,
        "quotes": b'"' * size,
        "no text": b"\xff" * size,
        "frames": b"\0" * size,
        "zeros behind a bracket": b"[" + b"0" * size,
        "lone surrogates": b'[1e999,"' + rb"\ud800" * (size // 6) + b'"]',
    }


def messages_of_nvfix(size: int) -> dict[str, bytes]:
    """FIX and NVFIX messages that are slow to decode, by name."""
    return {
        "one long tag": b"1" * size + b"=a\x01",
        "one long tag without a value": b"1" * size,
        "one long value": b"1=" + b"a" * size,
        "separators": b"\x01" * size,
        "equals": b"=" * size,
        "one tag": b"1=\x01" * (size // 3),
        "many tags": b"\x01".join(b"%d=" % number for number in range(size // 8)) + b"\x01",
        "a bad field at the end": b"1=\x01" * (size // 3) + b"x",
        "a bad field in the middle": b"1=\x01" * (size // 6) + b"\x01" * (size // 2),
        "many texts": b"1=a\x012=b\x01" * (size // 8),
        "no text at the end": b"1=\x01" * (size // 3) + b"\xff",
        "wide characters": "1=ä\x01".encode() * (size // 5),
    }


def messages_of_msgpack(size: int) -> dict[str, bytes]:
    """MessagePack messages that are slow to decode, by name."""
    return {
        "empty arrays": b"\xdd" + struct.pack(">I", size) + b"\x90" * size,
        "empty maps": b"\xdd" + struct.pack(">I", size) + b"\x80" * size,
        "arrays of one": b"\xdd" + struct.pack(">I", size // 2) + b"\x91\xc0" * (size // 2),
        "maps of one": b"\xdd" + struct.pack(">I", size // 3) + b"\x81\xa0\xc0" * (size // 3),
        "nested arrays": b"\x91" * size + b"\xc0",
        "nested maps": b"\x81\xa0" * (size // 2) + b"\xc0",
        "groups of nested arrays": b"\xdd" + struct.pack(">I", size // 121) + (b"\x91" * 120 + b"\xc0") * (size // 121),
        "a huge array": b"\xdd\xff\xff\xff\xff" + b"\xc0" * size,
        "a huge map": b"\xdf\xff\xff\xff\xff" + b"\xc0" * size,
        "huge arrays in arrays": b"\xdd\x00\x0f\xff\xff" * (size // 5),
        "huge arrays of items that fit": b"\xdd\x00\x01\x00\x00" * (size // 5),
        "short announced arrays": b"\xdc\xff\xff" * (size // 3),
        "a huge binary": b"\xc6\xff\xff\xff\xff" + b"\0" * size,
        "one name": b"\xdf" + struct.pack(">I", size // 3) + b"\xa1a\xc0" * (size // 3),
        "many names": msgpack.packb({str(number): None for number in range(size // 8)}),
        "names that are numbers": b"\xdf" + struct.pack(">I", size // 2) + b"\x01\xc0" * (size // 2),
        "a bad name at the end": b"\xdf"
        + struct.pack(">I", size // 3)
        + b"\xa1a\xc0" * (size // 3 - 1)
        + b"\x01\xc0\xc0",
        "many items": b"\xc0" * size,
        "never used": b"\xc1" * size,
        "never used at the end": b"\xdd" + struct.pack(">I", size) + b"\xc0" * (size - 1) + b"\xc1",
        "empty arrays, then never used": b"\xdd" + struct.pack(">I", size) + b"\x90" * (size - 1) + b"\xc1",
        "empty maps, cut": b"\xdd" + struct.pack(">I", size) + b"\x80" * (size - 1),
        "times": b"\xdd" + struct.pack(">I", size // 6) + b"\xd6\xff\0\0\0\1" * (size // 6),
        "extensions": b"\xdd" + struct.pack(">I", size // 3) + b"\xd4\x01\x00" * (size // 3),
        "empty extensions": b"\xdd" + struct.pack(">I", size // 3) + b"\xc7\x00\x01" * (size // 3),
        "bad times": b"\xdd" + struct.pack(">I", size // 4) + b"\xc7\x01\xff\x00" * (size // 4),
        "texts": b"\xdd" + struct.pack(">I", size // 2) + b"\xa1a" * (size // 2),
        "empty texts": b"\xdd" + struct.pack(">I", size) + b"\xa0" * size,
        "no texts": b"\xdd" + struct.pack(">I", size // 2) + b"\xa1\xff" * (size // 2),
    }


def _document(content: bytes) -> bytes:
    return struct.pack("<i", len(content) + 5) + content + b"\0"


def _nested_document(kind: bytes, levels: int) -> bytes:
    # From the inside out: each level has its length, its type, an empty name and its content.
    head = [struct.pack("<i", 5 + 7 * (levels - level)) + kind + b"\0" for level in range(levels)]
    return b"".join(head) + _document(b"") + b"\0" * levels


def messages_of_bson(size: int) -> dict[str, bytes]:
    """BSON documents that are slow to decode, by name."""
    return {
        "empty documents": _document(b"\x03\0\5\0\0\0\0" * (size // 7)),
        "empty arrays": _document(b"\x04\0\5\0\0\0\0" * (size // 7)),
        "an array of empty documents": _document(b"\x04a\0" + _document(b"\x03\0\5\0\0\0\0" * (size // 7))),
        "nulls of one name": _document(b"\x0a\0" * (size // 2)),
        "an array of nulls": _document(b"\x04a\0" + _document(b"\x0a\0" * (size // 2))),
        "many names": bson.encode({str(number): None for number in range(size // 8)}),
        "nested documents": _nested_document(b"\x03", size // 8),
        "nested arrays": _nested_document(b"\x04", size // 8),
        "groups of nested documents": _document((b"\x03\0" + _nested_document(b"\x03", 100)) * (size // 807)),
        "one long name": _document(b"\x0a" + b"a" * size + b"\0"),
        "a long number of decimals": _document(b"\x13\0" + b"\xff" * 16) * (size // 23),
        "decimals": _document((b"\x13\0" + b"\1" * 16) * (size // 18)),
        "dates": _document((b"\x09\0" + b"\1" * 8) * (size // 10)),
        "dates of years below 9999": _document((b"\x09\0" + b"\1" * 5 + b"\0" * 3) * (size // 10)),
        "object ids": _document((b"\x07\0" + b"\1" * 12) * (size // 14)),
        "regular expressions": _document(b"\x0b\0\0\0" * (size // 4)),
        "one regular expression": _document(b"\x0b\0" + b"(a*)*" * (size // 5) + b"\0i\0"),
        "code with a scope": _document((b"\x0f\0" + struct.pack("<ii", 14, 1) + b"\0" + _document(b"")) * (size // 16)),
        "references": _document((b"\x0c\0" + struct.pack("<i", 1) + b"\0" + b"\1" * 12) * (size // 19)),
        "documents like references": _document((b"\x03\0" + bson.encode({"$ref": "", "$id": 0})) * (size // 33)),
        "uuids": _document((b"\x05\0" + struct.pack("<i", 16) + b"\4" + b"\1" * 16) * (size // 23)),
        "smallest keys": _document(b"\xff\0" * (size // 2)),
        "timestamps": _document((b"\x11\0" + b"\1" * 8) * (size // 10)),
        "a huge length": b"\xff\xff\xff\x7f" + b"\0" * size,
        "huge lengths inside": _document(b"\x03\0\xff\xff\xff\x7f" * (size // 6)),
        "a negative length": b"\xff" * size,
        "texts": _document((b"\x02\0" + struct.pack("<i", 1) + b"\0") * (size // 7)),
        "no texts": _document((b"\x02\0" + struct.pack("<i", 2) + b"\xff\0") * (size // 8)),
    }


def messages_of_xml(size: int) -> dict[str, bytes]:
    """XML documents that are slow to decode, by name."""
    return {
        "empty elements": b"<a>" + b"<a/>" * (size // 4) + b"</a>",
        "elements of many names": b"<a>" + b"".join(b"<b%d/>" % number for number in range(size // 11)) + b"</a>",
        "elements and texts": b"<a>" + b"<a/>b" * (size // 5) + b"</a>",
        "elements with an attribute": b"<a>" + b'<a a=""/>' * (size // 9) + b"</a>",
        "nested elements": b"<a>" * size,
        "groups of nested elements": b"<a>" + (b"<a>" * 100 + b"</a>" * 100) * (size // 700) + b"</a>",
        "attributes": b"<a " + b" ".join(b'a%d=""' % number for number in range(size // 11)) + b"/>",
        "one attribute many times": b"<a" + b' a=""' * (size // 5) + b"/>",
        "attributes of one hash": b"<a " + b" ".join(b'%s=""' % (b"a" * (number % 1000 + 1)) for number in range(2000)),
        "a long attribute": b'<a a="' + b"&#9;" * (size // 4) + b'"/>',
        "a long attribute that does not end": b'<a a="' + b"a" * size,
        "a long name": b"<" + b"a" * size + b"/>",
        "a long text": b"<a>" + b"b" * size + b"</a>",
        "lines": b"<a>" + b"\r" * size + b"</a>",
        "line breaks and marks": b"<a>" + b"&#13;" * (size // 5) + b"</a>",
        "sections": b"<a>" + b"<![CDATA[]]>" * (size // 12) + b"</a>",
        "sections of one": b"<a>" + b"<![CDATA[]]]>" * (size // 13) + b"</a>",
        "instructions": b"<a>" + b"<?a?>" * (size // 5) + b"</a>",
        "our instructions": b"<a>" + b"<?sowstream a?>" * (size // 15) + b"</a>",
        "our instructions of many words": b"<a>"
        + b"".join(b"<?sowstream %x?>" % number for number in range(size // 18))
        + b"</a>",
        "one long instruction": b"<a><?sowstream " + b"a " * (size // 2) + b"?></a>",
        "comments": b"<a>" + b"<!---->" * (size // 7) + b"</a>",
        "a comment that does not end": b"<a><!--" + b"-" * size,
        "a section that does not end": b"<a><![CDATA[" + b"]" * size,
        "an instruction that does not end": b"<a><?" + b"a" * size,
        "a document type": b"<!DOCTYPE a [" + b"<!ENTITY b 'c'>" * (size // 15) + b"]><a/>",
        "angle brackets": b"<" * size,
        "references": b"<a>" + b"&amp;" * (size // 5) + b"</a>",
        "unknown references": b"<a>" + b"&b;" * (size // 3) + b"</a>",
        "utf-16": "<a>".encode("utf-16") + "<a/>".encode("utf-16-le") * (size // 8) + "</a>".encode("utf-16-le"),
        "another encoding": b"<?xml version='1.0' encoding='cp1252'?><a>" + b"\xe4<a/>" * (size // 5) + b"</a>",
        "a long encoding": b"<?xml version='1.0' encoding='" + b"a" * size + b"'?><a/>",
        "spaces": b" " * size + b"<a/>",
    }


def messages_of_protobuf(size: int, nested: int, texts: int, entries: int) -> dict[str, bytes]:
    """Protobuf messages that are slow to decode, by name.

    Each argument after the size is a field number: of the message itself, of repeated messages and of a map of
    messages.
    """

    def tag(number: int, kind: int = 2) -> bytes:
        return varint(number << 3 | kind)

    inner = b""
    while len(inner) < size // 64:
        inner = tag(nested) + varint(len(inner)) + inner
    return {
        "an endless varint": b"\x08" + b"\xff" * size,
        "an endless tag": b"\xff" * size,
        "varints of ten bytes": (b"\x08" + b"\xff" * 9 + b"\x01") * (size // 11),
        "varints of eleven bytes": (b"\x08" + b"\xff" * 10 + b"\x01") * (size // 12),
        "empty messages": (tag(texts) + b"\0") * (size // 2),
        "one nested message many times": (tag(nested) + b"\0") * (size // 2),
        "nested messages": inner * 64,
        "unknown varints of one number": (tag(1000, 0) + b"\0") * (size // 3),
        "unknown varints of short numbers": (tag(15, 0) + b"\0") * (size // 2),
        "unknown texts of one number": (tag(1000) + b"\0") * (size // 3),
        "unknown varints of many numbers": b"".join(
            tag(number, 0) + b"\0" for number in range(16_384, 16_384 + size // 4)
        ),
        "unknown groups in one another": tag(1000, 3) * (size // 2),
        "unknown groups": (tag(1000, 3) + tag(1000, 4)) * (size // 4),
        "unknown fields of a nested group": tag(15, 3) + (tag(15, 0) + b"\0") * (size // 2) + tag(15, 4),
        "entries": b"".join(
            tag(entries) + varint(len(entry)) + entry
            for entry in (b"\x08" + varint(number) + b"\x12\0" for number in range(size // 9))
        ),
        "entries of one key": (tag(entries) + b"\0") * (size // 2),
        "one long field": tag(1) + varint(size) + b"a" * size,
        "a huge length": tag(texts) + b"\xff\xff\xff\xff\x07" + b"a" * size,
        "frames": b"\0" * size,
        "a frame with a long path": b"\0\0\0\0\0" + b"\xfe\xff\xff\xff\x0f" + b"\1" * size,
        "a frame with an endless number": b"\0\0\0\0\0" + b"\xff" * size,
    }


def messages_of_composite(size: int, parts: int = 3) -> dict[str, bytes]:
    """Composite messages that are slow to decode, by name; the first part is JSON."""
    messages = {
        "zeros": b"\0" * size,
        "a huge part": b"\xff" * size,
        "too much behind the last part": b"\0" * (4 * parts + size),
        "one long last part": b"\0" * 4 * (parts - 1) + size.to_bytes(4) + b"a" * size,
    }
    texts = texts_of_json(size)
    for name in ("empty arrays", "many doubles that are cut", "many infinities", "many names"):
        messages[f"{name} in a part"] = len(texts[name]).to_bytes(4) + texts[name]
    return messages


AVRO_SCHEMA: Final = {
    "type": "record",
    "name": "Node",
    "fields": [
        {"name": "id", "type": ["null", "string"], "default": None},
        {"name": "next", "type": ["null", "Node"], "default": None},
        {"name": "nodes", "type": {"type": "array", "items": "Node"}, "default": []},
        {"name": "numbers", "type": {"type": "array", "items": "long"}, "default": []},
        {"name": "either", "type": {"type": "array", "items": ["null", "string", "long"]}, "default": []},
        {"name": "names", "type": {"type": "map", "values": "long"}, "default": {}},
        {
            "name": "price",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}],
            "default": None,
        },
        {
            "name": "days",
            "type": {"type": "array", "items": {"type": "int", "logicalType": "date"}},
            "default": [],
        },
    ],
}
"""A record schema that contains itself, so that its depth is checked first, with every other costly type."""


def messages_of_avro(size: int) -> dict[str, bytes]:
    """Avro messages of `AVRO_SCHEMA` that are slow to decode, by name, without a frame."""
    null, empty = zigzag(0), zigzag(0)
    node = null * 2 + empty * 4 + null + empty

    def at(index: int, content: bytes) -> bytes:
        """Return a record in which one field is longer than its minimum."""
        return b"\0" * index + content + b"\0" * (7 - index)

    def array(item: bytes) -> bytes:
        count = size // len(item)
        return zigzag(count) + item * count + b"\0"

    return {
        "empty records": at(2, array(node)),
        "records one by one": at(2, (zigzag(1) + node) * (size // 9) + b"\0"),
        "nested records": (b"\0" + zigzag(1)) * (size // 2),
        "nested arrays": (b"\0\0" + zigzag(1)) * (size // 3),
        "groups of nested records": at(2, array((b"\0" + zigzag(1)) * 60 + b"\0" * 8 + b"\0" * 6 * 60)),
        "numbers": at(3, array(b"\1")),
        "numbers one by one": at(3, (zigzag(1) + b"\1") * (size // 2) + b"\0"),
        "numbers with sizes": at(3, (b"\1" + zigzag(1) + b"\1") * (size // 3) + b"\0"),
        "long numbers": at(3, array(b"\xff" * 9 + b"\1")),
        "endless number": at(3, b"\xff" * size),
        "a huge count": at(3, zigzag(2**62) + b"\1" * size),
        "a huge negative count": at(3, zigzag(-(2**62)) + zigzag(8) + b"\1" * size),
        "texts of a union": at(4, array(zigzag(1) + zigzag(0))),
        "nulls of a union": at(4, array(zigzag(0))),
        "branches that there are not": at(4, array(zigzag(9))),
        "one name": at(5, array(zigzag(0) + b"\0")),
        "many names": at(5, _names(size)),
        "a long decimal": at(6, zigzag(1) + zigzag(size) + b"\x7f" * size),
        "dates": at(7, array(b"\1")),
        "dates that there are not": at(7, array(b"\xfe\xff\xff\xff\x0f")),
        "a long text": at(0, zigzag(1) + zigzag(size) + b"a" * size),
        "a huge text": at(0, zigzag(1) + zigzag(2**62) + b"a" * size),
        "zeros": b"\0" * size,
        "ones": b"\1" * size,
        "rubbish": b"\xff" * size,
    }


def _names(size: int) -> bytes:
    names = [str(number).encode() for number in range(size // 8)]
    return zigzag(len(names)) + b"".join(zigzag(len(name)) + name + b"\1" for name in names) + b"\0"


def messages_of(name: str, size: int = MIB) -> dict[str, bytes]:
    """The slow messages of a message type, or of one of its variants in `specimens`, each of about `size` bytes."""
    makers: dict[str, Callable[[int], dict[str, bytes]]] = {
        "json": texts_of_json,
        "json-schema": texts_of_json,
        "nvfix": messages_of_nvfix,
        "fix": messages_of_nvfix,
        "msgpack": messages_of_msgpack,
        "bson": messages_of_bson,
        "xml": messages_of_xml,
        "protobuf": lambda size: messages_of_protobuf(size, nested=3, texts=7, entries=8),
        "protobuf-presence": lambda size: messages_of_protobuf(size, nested=2, texts=4, entries=5),
        "composite-local": messages_of_composite,
        "composite-global": messages_of_composite,
        "avro": messages_of_avro,
        "binary": lambda size: {"any bytes": b"\0" * size},
    }
    return makers[name](size)


def fuzzed(messages: dict[str, bytes], seed: int, count: int, size: int = MIB) -> Iterator[tuple[str, bytes]]:
    """Random messages of about `size` bytes with their names, built from changed pieces of slow messages.

    A piece is repeated, since a message that takes longer than its length allows does so by repetition.
    """
    wheel = random.Random(seed)
    names = sorted(messages)
    for index in range(count):
        first = wheel.choice(names)
        data = bytearray(messages[first][: wheel.choice((16, 64, 4096, size // 2, size))])
        while len(data) < size:
            source = messages[wheel.choice(names)]
            begin = wheel.randrange(max(1, len(source) - 16))
            piece = source[begin : begin + wheel.choice((2, 3, 5, 8, 40, _PIECE_BYTES_MAX))] or b"\0"
            times = wheel.choice((100, 10_000, size))
            data += piece * min(times, (size - len(data)) // len(piece) + 1)
        for _ in range(wheel.choice((0, 1, 10))):
            data[wheel.randrange(len(data))] = wheel.randrange(256)
        yield f"{index}, which begins with {first}", bytes(data)
