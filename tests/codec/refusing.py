"""How tests ask for a refusal."""

from __future__ import annotations

import pytest

from processor.codec import Codec
from processor.errors import RecordRejected


def refused(codec: Codec, data: bytes) -> str:
    """Why a codec rejects a message, reason and sentence."""
    with pytest.raises(RecordRejected) as caught:
        codec.decode(data)
    return str(caught.value)
