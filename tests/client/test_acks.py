import json

import pytest

from processor.errors import ConfigurationError
from processor.wire.ack import Ack, ack_types, read_ack


def test_ack_types_are_read_in_the_order_of_a_commands_way():
    """In any notation, the last type is the one that the future waits for; `none` means no acks."""
    assert ack_types("persisted, received") == ("received", "persisted")
    assert ack_types(None) == ack_types("none") == ack_types("") == ()


def test_other_ack_types_are_refused_with_a_word():
    """`stats` is not supported for publishing; an unknown type is answered with a suggestion."""
    with pytest.raises(ConfigurationError, match="'stats' is not supported"):
        ack_types("persisted,stats")
    with pytest.raises(ConfigurationError, match="did you mean 'persisted'"):
        ack_types("persistent")


def test_an_ack_may_lack_fields():
    """A field without a value is None, whether it is null or missing."""
    said = {"ack_type": "processed", "status": "failure", "reason": "missing_key: none", "client": "c", "sequence": 3}
    ack = read_ack("orders", json.dumps(said | {"sow_key": None}).encode())
    assert ack == Ack("failure", "missing_key: none", "processed", "orders", None, "c", 3, None)


@pytest.mark.parametrize(
    "value",
    [b"", b"1", b"[]", b"{}", b'{"ack_type":"x","status":"success"}', b'{"ack_type":"received","status":"?"}',
     b'{"ack_type":"received","status":"success","sequence":"1"}'],
)  # fmt: skip
def test_an_invalid_ack_is_an_error(value: bytes):
    """A foreign record on the ack topic raises a ValueError, which the reader logs and ignores."""
    with pytest.raises(ValueError, match=r"."):
        read_ack("orders", value)
