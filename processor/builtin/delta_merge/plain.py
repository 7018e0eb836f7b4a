"""The plain predicate: the commands that may take a fast path instead of the merge in parts (`DeltaMerge`).

A fast path is a second way to write the same merge. Each of them leaves a command that is not plain, and every command
that fails, to `DeltaMerge`, which begins with it again. The functions below are the predicate; the loops have the
conditions of a command and its state written out, as a call for each record would use up the gain.

=================================  ==========================  ==========================  =============================
condition                          `fast_path`                 `fast_path_json.pyx`        Spark's `plain_runs`
=================================  ==========================  ==========================  =============================
topic: nothing but merging         `is_plain_topic`            `is_plain_topic`            `only_merges`
topic: key                         one field                   one field                   any fields
topic: message type                deltas without headers      JSON (`json_text`)          JSON
topic: default command             `delta_publish`             `delta_publish`             any
topic: depth of the merge          any                         no limit                    any
command                            `is_plain_command`          `is_plain_command`          publish and delete as well;
                                                                                           headers that travel, repeats
state                              `is_plain_state`            `is_plain_state`            `is_plain_state`
result: removed fields             left                        left                        merged (no delta is written)
result: limits of size             left                        left, and those at its top  left
=================================  ==========================  ==========================  =============================

Spark's compiled `spark_integration/merge/batch/runs/json_runs.pyx` takes the commands of `fast_path_json.pyx`; also
full records, and the headers `command`, `client`, `sequence`, `ack_type` and `command_id`.

Tests: `tests/builtin/delta_merge/test_fast_path.py` compares both ways of the worker with the merge in parts,
and the loops with the functions below; `tests/builtin/delta_merge/test_compiled_*.py` the compiled one with the one in
Python, and `tests/spark/test_merge_batch_fold.py` Spark's with a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.wire.command import KEY_BYTES_MAX

if TYPE_CHECKING:
    from processor.api import Codec, Record, Stored
    from processor.config import TopicConfig
    from processor.merge import KeyFields


def only_merges(settings: TopicConfig) -> bool:
    """Return whether a topic's settings ask for nothing but merging: no rule, no plug-in, no expiration, no source."""
    does_more = settings.merge_rules or settings.sequence_groups or settings.preprocess or settings.enrich
    return not does_more and settings.expiration is None and not settings.source_header


def is_plain_topic(settings: TopicConfig, codec: Codec, key: KeyFields) -> bool:
    """Return whether a worker may merge the plain commands of a topic on its fast path."""
    has_plain_type = codec.can_delta and not codec.uses_headers and not codec.completes
    has_plain_command = settings.default_command == "delta_publish"
    return only_merges(settings) and has_plain_type and has_plain_command and key.only_name is not None


def is_plain_command(record: Record, settings: TopicConfig) -> bool:
    """Return whether a record is a delta without headers, with a key and within the limits of size."""
    key, value, headers, _, _ = record
    if headers or key is None or value is None:
        return False
    return len(value) <= settings.max_record_bytes and len(key) <= KEY_BYTES_MAX


def is_plain_state(stored: Stored | None) -> bool:
    """Return whether the record that a command meets never expires and has no time to live of its own."""
    return stored is None or not (stored.expires_at_ms or stored.expiration)
