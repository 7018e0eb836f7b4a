"""The predicate of plain commands, which the compiled fold may merge instead of the merge in parts (`command_merge`).

The compiled fold (`fast_path_json.pyx`) writes the same merge of JSON a second time, on texts. It leaves every command
that is not plain, and every one that fails, to `command_merge`, which begins with it again. A worker calls it with the
records of a batch; Spark's loop (`spark_integration/merge/batch/runs/json_runs.pyx`) reads them from Arrow's buffers.
The functions below are the predicate; the fold has the conditions of a command and its state written out, as a call for
each record would use up the gain.

=================================  ==============================  =================================================
condition                          worker                          Spark
=================================  ==============================  =================================================
topic: nothing but merging         `only_merges`                   `only_merges`
topic: JSON, key fields at the top `compiled_fold`                 `compiled_fold`
topic: no limit of depth           `compiled_fold`                 `compiled_fold`
topic: default command             `delta_publish`                 `delta_publish` or `publish`
command                            `is_plain_command`              full records as well, and headers `command`,
                                                                   `client`, `sequence`, `ack_type`, `command_id`
state                              `is_plain_state`                `is_plain_state`
result: removed fields             left                            left
result: limits of size             left                            left
=================================  ==============================  =================================================

Tests: `tests/builtin/delta_merge/test_fast_path.py` and `test_compiled_*.py` compare the fold with the merge in parts,
and with the functions below; `tests/spark/test_merge_batch_fold.py` compares Spark's loop with a worker.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from processor.merge import KeyFields
from processor.record import Stored
from processor.wire.command import KEY_BYTES_MAX
from processor.wire.record_headers import EMPTY, INSERT, VERSION_NAME

try:
    from processor.builtin.delta_merge.fast_path_json import CompiledDeltas

    has_compiled = not os.environ.get("SOWSTREAM_NO_EXTENSIONS")
except ImportError:  # There was no compiler where this was installed.
    has_compiled = False

if TYPE_CHECKING:
    from processor.api import Codec, Record
    from processor.config import TopicConfig
    from processor.wire.partition_marks import Lives

_KEY_FIELDS_MAX: Final = 8
"""Key fields of a topic whose deltas are merged compiled: `key_text.pxd` has room for so many."""


def compiled_fold(
    settings: TopicConfig, codec: Codec, lives: Lives, *, partition: int, partitions: int
) -> CompiledDeltas | None:
    """Return the compiled merge of a topic's plain deltas; None if there is none, or if its settings ask for more.

    Args:
        settings: the topic's.
        codec: its message type.
        lives: the versions with which new records begin.
        partition: the number of the partition.
        partitions: number of partitions that a new key is hashed over; 1: every key may stay.
    """
    text, names = codec.json_text, KeyFields(settings.key_fields).top_names
    if not has_compiled or text is None or not 1 <= len(names) <= _KEY_FIELDS_MAX:
        return None
    if settings.merge_depth is not None or not only_merges(settings):
        return None
    return CompiledDeltas(
        read=text.parse,
        write=text.write,
        survives=text.survives,
        names=tuple(map(codec.encode, names)),
        null_policy=settings.null_policy,
        bytes_max=settings.max_record_bytes,
        key_bytes_max=KEY_BYTES_MAX,
        depth_max=text.max_depth,
        lives=lives,
        insert=INSERT,
        empty=EMPTY,
        version_name=VERSION_NAME,
        stored=Stored,
        partition=partition,
        partitions=partitions,
    )


def only_merges(settings: TopicConfig) -> bool:
    """Return whether a topic's settings ask for nothing but merging: no rule, no plug-in, no expiration, no source."""
    does_more = settings.merge_rules or settings.sequence_groups or settings.preprocess or settings.enrich
    return not does_more and settings.expiration is None and not settings.source_header


def is_plain_command(record: Record, settings: TopicConfig) -> bool:
    """Return whether a record is a delta without headers, with a key and within the limits of size."""
    key, value, headers, _, _ = record
    if headers or key is None or value is None:
        return False
    return len(value) <= settings.max_record_bytes and len(key) <= KEY_BYTES_MAX


def is_plain_state(stored: Stored | None) -> bool:
    """Return whether the record that a command meets never expires and has no time to live of its own."""
    return stored is None or not (stored.expires_at_ms or stored.expiration)
