"""Merges the plain deltas of a batch, in one function: the hot path of a worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from processor.api import Headers, Outgoing, Record, Stored, Value
from processor.builtin.delta_merge.plain import is_plain_topic
from processor.merge import insert
from processor.wire.command import KEY_BYTES_MAX
from processor.wire.record_headers import EMPTY, INSERT, VERSION_NAME

if TYPE_CHECKING:
    from processor.api import Codec, State
    from processor.builtin.delta_merge.compiled_settings import CompiledSettings
    from processor.builtin.delta_merge.placement import Placement
    from processor.config import TopicConfig
    from processor.wire.partition_marks import Lives


READ_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of the stored records that are read at once."""
LOOK_BYTES: Final = 256 * 1024
"""After so many bytes of outputs a merge asks whether the batch should end."""
LOOK_RECORDS: Final = 16
"""After so many records a merge asks, too."""


def read_states(state: State, records: Sequence[Record]) -> tuple[Sequence[Record], dict[bytes, Stored | None]]:
    """Read the states that records meet: return the first records, as many as fit, and the states of their keys."""
    keys = [record[0] for record in records if record[0] is not None]
    states, count = state.get_some(keys, READ_BYTES_MAX)
    if count == len(keys):
        return records, states
    places = [place for place, record in enumerate(records) if record[0] is not None]
    return records[: places[count]], states


try:
    from processor.builtin.delta_merge.fast_path_json import CompiledDeltas

    has_compiled = not os.environ.get("SOWSTREAM_NO_EXTENSIONS")
except ImportError:  # There was no compiler where this was installed.
    has_compiled = False

Take: TypeAlias = Callable[[Record], int]
"""Carries out any command; returns the bytes of the outputs that it has made in this batch."""

IsFull: TypeAlias = Callable[[int], bool]
"""True if a batch should end: takes the bytes of the outputs that it has made."""

MergeBatch: TypeAlias = Callable[
    [
        Sequence[Record],
        dict[bytes, Stored | None],
        dict[bytes, Stored | None],
        list[Outgoing],
        list[Outgoing],
        Take,
        IsFull,
    ],
    tuple[int, int],
]
"""`(records, states, changed, sow, delta, take, is_full)`: merge the records in order, until it is enough.

`states` has the state of every key, `changed` gets the new ones; `sow` and `delta` get the records to send. A command
that is not plain goes to `take`. Returns how many records were merged, and the bytes of the outputs made without
`take`.
"""

_MISSING: Final[Value] = object()  # Unlike None, in no message.
# Stored(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__


def plain_deltas(
    settings: TopicConfig,
    codec: Codec,
    compiled: CompiledSettings,
    lives: Lives,
    placement: Placement,
) -> MergeBatch | None:
    """Return the merge of a topic's plain deltas; None if its settings leave no command plain.

    Args:
        settings: the topic's.
        codec: its message type.
        compiled: its settings, compiled.
        lives: the versions with which new records begin.
        placement: the keys that belong to the partition.
    """
    name = compiled.key.only_name
    if name is None or not is_plain_topic(settings, codec, compiled.key):
        return None
    text = codec.json_text
    if has_compiled and text is not None and compiled.policy.merge_depth is None:
        return CompiledDeltas(
            read=text.parse,
            write=text.write,
            survives=text.survives,
            name=codec.encode(name),
            null_policy=compiled.policy.null_policy,
            bytes_max=settings.max_record_bytes,
            key_bytes_max=KEY_BYTES_MAX,
            depth_max=text.max_depth,
            lives=lives,
            insert=INSERT,
            empty=EMPTY,
            version_name=VERSION_NAME,
            stored=Stored,
            partition=placement.partition,
            partitions=placement.partitions,
        )
    decode, decode_own, encode = codec.decode, codec.decode_own, codec.encode_decoded
    merge, policy = compiled.merge, compiled.policy
    bytes_max, first_version = settings.max_record_bytes, lives.first_version

    def merge_batch(
        records: Sequence[Record],
        states: dict[bytes, Stored | None],
        changed: dict[bytes, Stored | None],
        sow: list[Outgoing],
        delta: list[Outgoing],
        take: Take,
        is_full: IsFull,
    ) -> tuple[int, int]:
        headers: Headers
        made_bytes, taken_bytes, look_bytes, look_at = 0, 0, LOOK_BYTES, LOOK_RECORDS
        for number, record in enumerate(records):
            if made_bytes + taken_bytes >= look_bytes or number >= look_at:
                look_bytes, look_at = made_bytes + taken_bytes + LOOK_BYTES, number + LOOK_RECORDS
                if is_full(made_bytes + taken_bytes):
                    return number, made_bytes
            key, value, record_headers, offset, _ = record
            if record_headers or key is None or value is None or len(value) > bytes_max:
                taken_bytes = take(record)
                continue
            old = states[key]
            # By number: twice as fast. A record that expires, or has a time to live of its own, is not plain.
            if old is not None and (old[2] or old[4]):
                taken_bytes = take(record)
                continue
            try:
                body = decode(value)
                key_value = body.get(name, _MISSING)
                kind = type(key_value)
                has_key = (kind is str and key_value.encode() == key) or (kind is int and b"%d" % key_value == key)
                if not has_key and (old is None or key_value is not _MISSING):
                    taken_bytes = take(record)
                    continue
                if old is None:
                    if placement.elsewhere(key) is not None:
                        taken_bytes = take(record)
                        continue
                    merged, fields, removed = insert(body, policy)
                    own, version = key_value, first_version(key, offset)
                    headers = [(VERSION_NAME, b"%d" % version), INSERT]
                else:
                    if has_key:  # The record's own stays, as it was written.
                        del body[name]
                    merged = decode_own(old[1])
                    own, version = merged[name], old[0] + 1
                    _, fields, removed = merge(merged, body)
                    headers = [(VERSION_NAME, b"%d" % version)]
                data, delta_data = encode(merged), encode({name: own, **fields})
            except Exception:  # noqa: BLE001 - `take` raises the same error again
                taken_bytes = take(record)
                continue
            if len(data) > bytes_max or removed or len(key) > KEY_BYTES_MAX:
                taken_bytes = take(record)
                continue
            sow.append((key, data, headers))
            delta.append((key, delta_data, headers if fields else [*headers, EMPTY]))
            states[key] = changed[key] = _new(Stored, (version, data, 0, -1, b"", b""))
            made_bytes += len(data) + len(delta_data)
        return len(records), made_bytes

    return merge_batch
