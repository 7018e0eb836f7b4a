"""Messages of XML and NVFIX."""

from __future__ import annotations

from decimal import Decimal

import pytest

from processor.codec import CodecOptions
from processor.codec.nvfix import FixCodec, NvfixCodec, python_encoding
from processor.codec.xml import XmlCodec
from processor.errors import ConfigurationError
from tests.builtin.merging import merging, rejected
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
def test_a_value_that_xml_lacks_is_a_type_error_with_its_path(value, why):
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


PIPED = CodecOptions(separator="|")


def test_the_last_separator_may_be_missing_and_is_written():
    """The last separator may be missing in a message and is always written; later equals signs belong to the value."""
    for data in (b"a=1|b=x=y|c=", b"a=1|b=x=y|c=|"):
        value = NvfixCodec(PIPED).decode(data)
        assert value == {"a": "1", "b": "x=y", "c": ""}
        assert NvfixCodec(PIPED).encode(value) == b"a=1|b=x=y|c=|"


def test_repeating_groups_are_arrays():
    """Repeated fields become arrays: every value is kept in order, the interleaving of a group is not."""
    codec = FixCodec(PIPED)
    value = codec.decode(b"35=D|453=2|448=A|447=D|448=B|447=D|55=IBM|")
    assert value == {"35": "D", "453": "2", "448": ["A", "B"], "447": ["D", "D"], "55": "IBM"}
    assert codec.encode(value) == b"35=D|453=2|448=A|448=B|447=D|447=D|55=IBM|"


def test_numbers_and_booleans_are_written_as_text():
    """Numbers and booleans from plug-ins and merge rules are written as text with every digit."""
    value = {"a": 1, "b": 1.5, "c": True, "d": Decimal(18446744073709551616), "e": ["x", 2]}
    assert NvfixCodec(PIPED).encode(value) == b"a=1|b=1.5|c=true|d=18446744073709551616|e=x|e=2|"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"a=1|b", "undecodable: expected name=value at byte 4; it is 'b'"),
        ("ä=1||b=2".encode(), "undecodable: expected name=value at byte 5; it is ''"),
        (b"=1", "undecodable: expected name=value at byte 0; it is '=1'"),
        (b"a=\xff", "undecodable: not UTF-8: invalid start byte at byte 2"),
    ],
)
def test_bad_bytes_are_refused_with_their_place(data, why):
    """Bad bytes are rejected with their offset in bytes, also after characters of several bytes."""
    assert refused(NvfixCodec(PIPED), data) == why


def test_fix_takes_tags_only():
    """FIX accepts tags of ASCII digits only."""
    assert refused(FixCodec(PIPED), b"35=D|x=1") == "undecodable: expected tag=value at byte 5; it is 'x=1'"
    assert "byte 0" in refused(FixCodec(PIPED), "٣=1".encode())
    with pytest.raises(TypeError, match="/x cannot be a field: 'x' is no tag"):
        FixCodec().encode({"x": "1"})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": "x|y"}, "/a holds the separator"),
        ({"a|b": "x"}, "/a|b cannot be a field"),
        ({"a=b": "x"}, "/a=b cannot be a field"),
        ({"": "x"}, "/ cannot be a field"),
        ({"a": None}, "/a is null"),
        ({"a": {}}, "/a is dict"),
        ({"a": [["x"]]}, "/a is list"),
        ({"a": []}, "/a is an empty array"),
        ({"a": "\ud800"}, "surrogate"),
        (["a"], "a record is an object; this is list"),
    ],
    ids=repr,
)
def test_an_unsupported_value_is_a_type_error_with_its_path(value, why):
    """A value that would be read back differently is a TypeError with its path."""
    with pytest.raises(TypeError) as caught:
        NvfixCodec(PIPED).encode(value)
    assert why in str(caught.value)


@pytest.mark.parametrize(("codec", "separator"), [(NvfixCodec, "="), (FixCodec, "="), (FixCodec, "5")])
def test_a_separator_that_stands_in_fields_is_a_configuration_error(codec, separator):
    """A separator that can occur in fields is a configuration error."""
    with pytest.raises(ConfigurationError, match="separator is "):
        codec(CodecOptions(separator=separator))


SETTINGS = {"message_type": "fix", "key": ["/11"], "separator": "|"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ISO-8859-1", "café"), ("iso8859-15", "10 €"), ("windows-1252", "“naïve”"), ("UTF-8", "東京"),
        ("Shift_JIS", "ポート"), ("EUC-JP", "東京"), ("ISO-2022-JP", "東京"),
    ],
)  # fmt: skip
def test_a_message_is_read_and_written_in_the_encoding_that_it_names(name, text):
    """A message and its data field are read by tag 347, and the same bytes are written."""
    data = text.encode(name)
    message = b"35=D|347=%b|11=7|58=%b|354=%d|355=%b|" % (name.encode(), data, len(data), data)
    value = FixCodec(PIPED).decode(message)
    assert value == {"35": "D", "347": name, "11": "7", "58": text, "355": text}
    assert FixCodec(PIPED).encode(value) == message


def test_a_record_keeps_its_encoding_through_deltas():
    """A SOW record is written in its encoding; a delta without tag 347 is in UTF-8, also with its length."""
    driver = merging(**SETTINGS)
    for message in (
        "347=ISO-8859-1|11=7|58=café|".encode("latin-1"),
        b"347=ISO-8859-1|11=7|354=3|355=\xe9|\xe9|",
        "11=7|44=1|1=ö|".encode(),
    ):
        driver.pipe_input(b"7", message)
    assert rejected(driver) == []
    record = "347=ISO-8859-1|11=7|58=café|354=3|355=é|é|44=1|1=ö|"
    assert driver.pending_output("sow")[-1].value == record.encode("latin-1")
    assert [record.value for record in driver.pending_output("delta")][1:] == [
        "11=7|354=5|355=é|é|".encode(), "11=7|44=1|1=ö|".encode(),
    ]  # fmt: skip


def test_a_character_that_the_encoding_lacks_is_rejected():
    """A delta whose text cannot be written in the record's encoding changes nothing, and says so."""
    driver = merging(**SETTINGS)
    driver.pipe_input(b"7", "347=ISO-8859-1|11=7|58=café|".encode("latin-1"))
    driver.pipe_input(b"7", "11=7|58=10 €|".encode())
    [(reason, detail)] = rejected(driver)
    assert reason == "schema_mismatch"
    assert "iso8859-1 has no '€'" in detail


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (["347=Shift_JIS|11=7|58=円|".encode("shift_jis"), "11=7|44=¥100|".encode()], "shift_jis has no '¥'"),
        (["11=7|58=100 ‾|".encode(), b"347=EUC-JP|11=7|"], "euc_jp has no '‾'"),
        (["11=7|58=10 £|".encode(), b"347=cp932|11=7|"], "cp932 has no '£'"),
        ([b"11=7|58=a\x1b$B|", b"347=ISO-2022-JP|11=7|"], "iso2022_jp has no '\\x1b'"),
        (["11=7|58=ポ347=z|".encode(), b"11=7|347=Shift_JIS|"], "in SHIFT_JIS, tag 347 would be read"),
        ([b"11=7|354=3|355=abc|", b"347=UTF-8|11=7|354=7|355=x|347=a|"], "in UTF-8, tag 347 would"),
    ],
)  # fmt: skip
def test_a_record_that_would_be_read_as_another_is_rejected(messages, why):
    """A text that the record's character set writes as another text, or as another tag 347, is not merged."""
    driver = merging(**SETTINGS)
    for message in messages:
        driver.pipe_input(b"7", message)
    [(reason, detail)] = rejected(driver)
    assert (reason, why in detail) == ("schema_mismatch", True)
    assert len(driver.pending_output("sow")) == 1


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"11=7|58=caf\xe9|", "not UTF-8: invalid continuation byte at byte 11; in another encoding a message says so"),
        (b"347=UTF-16|11=7|58=\xe9|", "not ASCII: ordinal not in range(128) at byte 19, and tag 347 names no encoding"),
        (b"347=rot13|58=\xe9|", "tag 347 names no encoding that is known: 'rot13'"),
        (b"354=9|355=ab|11=7|58=x|", "tag 355 at byte 10 does not end after 9 bytes, as tag 354 says"),
        (b"354=1|355=ab|", "tag 355 at byte 10 does not end after 1 bytes"),
        ("11=é|354=1|355=é|".encode(), "tag 355 at byte 16 does not end after 1 bytes"),
        (b"354=99|355=ab|", "does not end after 99 bytes"),
        (b"58=x|354=1|355=a|y|", "expected tag=value at byte 17; it is 'y'"),
        (b"95=9|96=a|347=b|c|347=ISO-8859-1|", "tag 347 at byte 9 is in the data of another field"),
    ],
)
def test_what_cannot_be_read_exactly_is_refused(message, why):
    """Text in no known encoding, and data whose length is wrong, are undecodable with the reason and the place."""
    assert why in refused(FixCodec(PIPED), message)


def test_data_may_hold_the_separator():
    """Raw data with separators is one value, in repeated fields too; its length is no field, and is written."""
    codec = FixCodec(PIPED)
    message = b"35=B|95=7|96=a|b=1|c|354=0|355=|33=2|354=3|355=|x=|354=1|355=y|10=1|"
    value = codec.decode(message)
    assert value == {"35": "B", "96": "a|b=1|c", "355": ["", "|x=", "y"], "33": "2", "10": "1"}
    assert codec.encode(value) == b"35=B|95=7|96=a|b=1|c|354=0|355=|354=3|355=|x=|354=1|355=y|33=2|10=1|"
    assert codec.decode(codec.encode(value)) == value


def test_a_length_without_its_data_is_a_field():
    """A length that no data follows is a value like others; beside its data it is refused where values are written."""
    codec = FixCodec(PIPED)
    for message in (b"354=5|", b"354=5|58=x|", b"354=x|355=ab|", b"354=5|91=abc|"):
        value = codec.decode(message)
        assert codec.decode(codec.encode_decoded(value)) == value
    assert codec.decode(b"355=ab|") == {"355": "ab"}
    with pytest.raises(TypeError, match="/354 is the length of /355, and is written with it: leave it out"):
        codec.encode({"354": "2", "355": "ab"})


def test_records_of_earlier_versions_are_read():
    """A stored record with a wrong length or an unknown encoding, which earlier versions took, is read as they did."""
    codec = FixCodec(PIPED)
    assert codec.decode_own(b"354=9|355=ab|58=x|") == {"354": "9", "355": "ab", "58": "x"}
    assert codec.decode_own("347=X-OWN|58=é|".encode()) == {"347": "X-OWN", "58": "é"}


@pytest.mark.parametrize(
    "name",
    [
        "utf-16", "utf-7", "utf_32", "hz", "rot13", "base64", "hex", "idna", "punycode", "unicode_escape", "cp037",
        "raw_unicode_escape", "undefined", "utf-8-sig", "", "../x", "a" * 50, "mbcs", "os",
    ],
)  # fmt: skip
def test_other_codecs_of_python_are_no_encodings(name):
    """Encodings in which tags are not ASCII, and Python's codecs that are no character sets, are not taken."""
    assert python_encoding(name) is None
