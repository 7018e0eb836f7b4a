"""The text of a SOW key is UTF-8, and the texts of two keys differ."""

import re
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from processor.record import Record
from processor.subscriptions.request.subscribed_topic import key_text
from processor.values.key_text import text_of_key


def key_of_text(text):
    """The one key that has a text: each escape stands for its byte."""
    return re.sub(rb"\\x(5c|[89a-f][0-9a-f])", lambda escape: bytes.fromhex(escape[1].decode()), text.encode())


PIECES = st.sampled_from(
    [b"\\", b"x", b"5c", b"ff", b"\\xff", b"\xff", b"\x80", b"\\x5c", b"\xc3\xa4", b"\xc3", b"F", b""]
)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(st.lists(PIECES, max_size=6).map(b"".join) | st.binary(max_size=8))
def test_a_key_follows_from_its_text(key):
    """The key follows from its text, so no two keys share one, and the text can be written as UTF-8."""
    assert key_of_text(text_of_key(key)) == key


def test_all_short_keys_have_texts_of_their_own():
    """All keys of up to six critical bytes have different texts."""
    keys = {b"".join(parts) for parts in product([b"", b"\\", b"x", b"5", b"c", b"f", b"\xff"], repeat=6)}
    assert len({text_of_key(key) for key in keys}) == len(keys)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["C:\\new\\x", "\\x41", "\\\\", "\\xFF", "ä\\"])
)
def test_a_key_of_valid_utf_8_is_its_own_text(text):
    """A key of valid UTF-8 is its own text, unless it looks like an escape of a byte beyond ASCII."""
    assert text_of_key(text.encode()) == text or re.search(r"\\x(5c|[89a-f][0-9a-f])", text)


def test_the_keys_of_messages_have_different_texts():
    """A byte that is not UTF-8 and the four characters of its escape are two keys with two texts."""
    texts = [key_text(Record(key, None, None, 0, 0)) for key in (b"\xff", b"\\xff", b"7", None)]
    assert texts == ["\\xff", "\\x5cxff", "7", ""]
