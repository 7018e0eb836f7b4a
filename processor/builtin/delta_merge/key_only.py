"""The delta of a record that is gone: its key fields, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.api import RecordRejected

if TYPE_CHECKING:
    from processor.api import Codec, Headers, Stored
    from processor.merge import KeyFields


def key_alone(codec: Codec, key: KeyFields, stored: Stored) -> tuple[bytes, Headers]:
    """Encode the key fields of a record; return the message and the headers that it needs.

    Where none of the body is a field, as in bytes under an explicit key, or where the message type cannot write key
    fields alone, the message is empty: the Kafka key names the record.
    """
    if not (codec.can_delta or key.pointers):
        return b"", []
    try:
        fields = key.only(codec.decode_own(stored.value))
    except RecordRejected:
        fields = {}  # A record that its message type cannot read any more must not outlive its end.
    try:
        return codec.encode_delta(fields) if codec.uses_headers else (codec.encode(fields), [])
    except TypeError:
        return b"", []  # Nor one whose type cannot say so little: a message may have fields that it requires.
