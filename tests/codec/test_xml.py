"""The message type XML maps elements and attributes to members, fetches nothing and expands nothing."""

import pytest

from processor.codec.xml import XmlCodec
from tests.codec.specimens import refused

CODEC = XmlCodec()


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"<a/>", {"a": ""}),
        (b"<a> \n</a>", {"a": " \n"}),
        (b'<a b="1"/>', {"a": {"@b": "1"}}),
        (b'<a b="1">x</a>', {"a": {"@b": "1", "#text": "x"}}),
        (b"<a>\n <b>1</b>\n <c/>\n</a>", {"a": {"b": "1", "c": ""}}),
        (b"<a>x<b/>y</a>", {"a": {"b": "", "#text": "xy"}}),
        (b"<a><b>1</b><c/><b>2</b></a>", {"a": {"b": ["1", "2"], "c": ""}}),
        (b"<?xml version='1.0'?><!-- c --><a><?p i?>&lt;<![CDATA[<b>]]><!-- c --></a>", {"a": "<<b>"}),
        (b'<o:a xmlns:o="urn:x" xmlns="d" o:b="1"/>', {"o:a": {"@xmlns:o": "urn:x", "@xmlns": "d", "@o:b": "1"}}),
        (b"<?xml version='1.0' encoding='iso-8859-1'?><a>\xe4</a>", {"a": "ä"}),
        (b"<?xml version='1.0' encoding='windows-1252'?><a>\x80</a>", {"a": "€"}),
        ("<?xml version='1.0' encoding='utf-16'?><a>ä</a>".encode("utf-16"), {"a": "ä"}),
    ],
    ids=repr,
)
def test_each_document_is_read_as_its_value(data, value):
    """Each document of the table is read as its value, and the value is read back when it is written again."""
    assert CODEC.decode(data) == value
    assert CODEC.decode(CODEC.encode(value)) == value


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"a": ["x"]}, None),
        ({"a": {"b": ["x"]}}, b"<a><b><?sowstream array?>x</b></a>"),
        ({"a": {"b": [{}]}}, b"<a><b><?sowstream array object?></b></a>"),
        ({"a": {}}, b"<a><?sowstream object?></a>"),
        ({"a": {"#text": "x"}}, b"<a><?sowstream object?>x</a>"),
        ({"a": ""}, b"<a></a>"),
        ({"a": {"@b": '<"\n\t\r>', "#text": "<\r>"}}, b'<a b="&lt;&quot;&#10;&#9;&#13;&gt;">&lt;&#13;&gt;</a>'),
        ({"a": {"b": 1, "c": [True, 1.5]}}, b"<a><b>1</b><c>true</c><c>1.5</c></a>"),
    ],
    ids=repr,
)
def test_an_instruction_keeps_values_that_plain_xml_cannot_express(value, data):
    """A processing instruction keeps arrays of one element, empty objects and texts of elements without attributes.

    Plain XML cannot express them, and replayed deltas would differ from the record without it.
    """
    if data is None:
        with pytest.raises(TypeError, match="/a is an array; there is one root element"):
            CODEC.encode(value)
    else:
        assert CODEC.encode(value) == data
        texts = {"b": "1", "c": ["true", "1.5"]}
        assert CODEC.decode(data) == ({"a": texts} if "c" in value["a"] else value)


def test_a_foreign_instruction_does_no_harm():
    """Foreign or misplaced instructions in a message do no harm."""
    assert CODEC.decode(b"<a><?sowstream array?>x</a>") == {"a": "x"}
    assert CODEC.decode(b"<a><?sowstream nonsense array?><b><?other array?>x</b></a>") == {"a": {"b": "x"}}


def test_a_message_too_deep_is_rejected_before_its_end():
    """A message nested too deep is rejected before the rest of it is read."""
    assert refused(CODEC, b"<a>\n" * 200).startswith(
        "too_deep: more than 128 elements in one another; line 129, column"
    )


LAUGHS = b"""<!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY lol1 "&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;">
<!ENTITY lol2 "&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;&lol1;">]><lolz>&lol2;</lolz>"""


@pytest.mark.parametrize(
    "data",
    [
        LAUGHS,
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><a>&x;</a>',
        b'<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x.dtd"><a/>',
        b'<!DOCTYPE a PUBLIC "p" "file:///etc/hostname" [<!ENTITY % p SYSTEM "file:///etc/hostname"> %p;]><a/>',
        b'<!DOCTYPE a [<!ATTLIST a b CDATA "default">]><a/>',
        b"<!DOCTYPE a><a/>",
    ],
)
def test_a_document_type_is_refused(data):
    """A document type is refused, so no entity expands (billion laughs), reads a file or uses the network."""
    assert refused(CODEC, data).startswith("undecodable: a document type (DTD) is refused; line 1, column ")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b" ", "no element found: line 1, column 1"),
        (b"<a>", "no element found: line 1, column 3"),
        (b"<a>\n &x;</a>", "undefined entity: line 2, column 1"),
        (b"<a/><b/>", "junk after document element: line 1, column 4"),
        (b'<a b="1" b="2"/>', "duplicate attribute: line 1, column 9"),
        (b"<a>\xff</a>", "not well-formed (invalid token): line 1, column 3"),
        (b"<?xml version='1.0' encoding='x-none'?><a/>", "unknown encoding: x-none; line 1"),
        (b"<?xml version='1.0' encoding='shift_jis'?><a/>", "multi-byte encodings are not supported; line 1"),
        (b"<?xml version='1.0' encoding='hex'?><a/>", "line 1"),
    ],
    ids=repr,
)
def test_bad_bytes_are_refused_with_line_and_column(data, why):
    """Bad bytes are rejected with line and column for every error of the parser and its encodings."""
    assert refused(CODEC, data).startswith("undecodable: not XML: ")
    assert why in refused(CODEC, data)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": None}, "/a is null"),
        ({"a": {"b": []}}, "/a/b is an empty array"),
        ({"a": {"b": [[1]]}}, "/a/b is an array in an array"),
        ({"a": {"b c": 1}}, "'b c' is no name"),
        ({"a": {"b/": 1}}, "no name"),
        ({"a": {"@": 1}}, "no name of an XML attribute"),
        ({"a": {"#cdata": 1}}, "no name"),
        ({"a": {"@b": {}}}, "/a/@b is dict"),
        ({"a": {"#text": ""}}, "/a/#text is empty"),
        ({"a": {"#text": " ", "b": "1"}}, "white space beside elements"),
        ({"a": "\0"}, "/a holds '\\x00'"),
        ({"a": "\ud800"}, "/a holds"),
        ({"a": 1, "b": 2}, "one member, the root element"),
        ("a", "one member, the root element"),
    ],
    ids=repr,
)
def test_an_unsupported_value_is_a_type_error_with_its_path(value, why):
    """A value that would be read back differently is a TypeError with its path."""
    with pytest.raises(TypeError) as caught:
        CODEC.encode(value)
    assert why in str(caught.value)


def test_a_name_cannot_smuggle_markup():
    """An element or attribute name from a client cannot inject markup."""
    for name in ("a b='c'", "a><b", "a/><!--", "a\n", " a", "", "1a", "a&b"):
        for value in ({name: "x"}, {"a": {name: "x"}}, {"a": {"@" + name: "x"}}):
            with pytest.raises(TypeError, match="no name"):
                CODEC.encode(value)
