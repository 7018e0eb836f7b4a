"""A helper for tests of rejected messages."""

from __future__ import annotations

import pytest

from processor.codec import Codec
from processor.errors import RecordRejected


def refused(codec: Codec, data: bytes) -> str:
    """Return the reason and the sentence with which a codec rejects a message."""
    with pytest.raises(RecordRejected) as caught:
        codec.decode(data)
    return str(caught.value)
