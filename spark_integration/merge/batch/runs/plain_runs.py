"""Merges runs of plain commands of one key: the hot path of a merge on Spark.

A worker reads keys in any order, and writes every state. Here the commands of a key follow one another, so its record
stays parsed until the last command and is encoded once; the merge functions are the same. A key with any other command
is left to the workers' merge: one that is rejected, expires, or is changed by a plug-in.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from processor.builtin.delta_merge.plain import is_plain_state, only_merges
from processor.codec.json import JsonCodec
from processor.merge import KeyFields, MergePolicy, compile_merge, insert
from processor.record import Stored
from processor.wire.command import KEY_BYTES_MAX, CommandReader
from processor.wire.forwarding import RESERVED
from processor.wire.record_headers import headers_of_version, insert_headers, removal_headers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.api import Codec, Headers, Value
    from processor.config import TopicConfig
    from processor.record import Outgoing, Record
    from processor.wire.command import CommandHeaders
    from spark_integration.merge.batch.runs.sequence_log import SequenceLog
    from spark_integration.merge.key_lives import KeyLives

_GROWTH_MAX: Final = 8
"""Bound for the growth of a message by encoding: `1e15` has 4 characters, and 18 when it is written."""

_BY_KEY = itemgetter(0)


class Run(NamedTuple):
    """The result of the records of one key."""

    state: Stored | None
    """The state after them; None where the key has no record."""
    last: Outgoing | None
    """The last SOW record to write, with the value of the state; None where nothing changed."""


class PlainRuns:
    """The merge of plain commands of one topic."""

    def __init__(self, codec: JsonCodec, topic: TopicConfig, log: SequenceLog, lives: KeyLives) -> None:
        """Compile the settings; use `of`, which checks them."""
        self._codec, self._log, self._lives = codec, log, lives
        self._requests = CommandReader(topic.default_command, codec.header_names)
        self._key = KeyFields(topic.key_fields)
        self._policy = MergePolicy(topic.null_policy, topic.merge_depth)
        self._merge = compile_merge(self._policy)
        self._nulls_missing = topic.null_policy == "ignore"
        self._bytes_max = topic.max_record_bytes
        self.events: Counter[str] = Counter()
        """The counters of events, with the workers' names."""

    @classmethod
    def of(cls, codec: Codec, topic: TopicConfig, log: SequenceLog, lives: KeyLives) -> PlainRuns | None:
        """Create the merge of a topic of JSON; None where records expire by default or plug-ins change them."""
        return cls(codec, topic, log, lives) if type(codec) is JsonCodec and only_merges(topic) else None

    def merge(self, records: Sequence[Record], states: Mapping[bytes, Stored]) -> tuple[dict[bytes, Run], list[Record]]:
        """Merge the records of every key that has plain commands only.

        Args:
            records: sorted by key, then by offset.
            states: the states of the keys before them.

        Returns:
            The result of each merged key, and the records of all others.
        """
        done: dict[bytes, Run] = {}
        rest: list[Record] = []
        for key, group in groupby(records, _BY_KEY):
            run = list(group)
            pending = self._log.pending
            try:
                after = self._run(key, run, states.get(key))
            except Exception:  # noqa: BLE001 - the workers' merge decides on the error
                after = None
            if after is None:
                self._log.forget(pending)
                rest += run
            else:
                done[key] = after
        return done, rest

    def _run(self, key: bytes, run: Sequence[Record], stored: Stored | None) -> Run | None:
        """Merge the records of one key; None where a command is not plain."""
        codec, key_fields, policy, fold, read = self._codec, self._key, self._policy, self._merge, self._requests.read
        decode, check, protect, nulls_missing = codec.decode, key_fields.check, key_fields.protect, self._nulls_missing
        plain, room, version = self._requests.plain, self._bytes_max, 0
        record: Value = None
        if len(key) > KEY_BYTES_MAX or not is_plain_state(stored) or key.startswith(RESERVED):
            return None
        if stored is not None:
            record, version, room = codec.decode_own(stored.value), stored.version, room - len(stored.value)
        is_duplicate, lives = self._log.is_duplicate, self._lives
        ended, is_insert = lives.ended_at(key), False
        passed: Headers = []
        gone: Outgoing | None = None
        duplicates = of_nothing = 0
        for came in run:
            _, value, headers, offset, _ = came
            request = plain
            if value is not None:
                # An upper bound: while it holds, no state in between can have been too large.
                room -= len(value) * _GROWTH_MAX
                if room < 0:
                    return None
            if headers:
                request = read(headers)
                if not _is_plain(request, key):
                    return None
                if request.sequence >= 0 and is_duplicate(came, request):
                    duplicates += 1
                    continue
            command = request[0]
            if value is None or command == "sow_delete":
                if version:
                    ended = version + 1
                    gone = key, None, [*removal_headers(ended, "delete"), *request.passed]
                    record, version = None, 0
                else:
                    of_nothing += 1
                continue
            body = decode(value)
            if type(body) is not dict:
                return None
            is_delta = command == "delta_publish"
            if not is_delta and key_fields.text(body) is None:
                return None
            check(key, body, nulls_missing and is_delta)
            if not is_delta:
                record = body
            elif version:
                protect(record, body, nulls_missing, policy.merge_depth)
                fold(record, body)
            else:
                record = insert(body, policy).record
            is_insert = not version
            version = lives.after(ended, offset) if is_insert else version + 1
            passed = request.passed
        self.events.update(duplicate=duplicates, delete_of_nothing=of_nothing)
        if ended:
            lives.end(key, ended)
        if not version:
            return Run(None, gone)
        if stored is not None and gone is None and version == stored.version:
            return Run(stored, None)
        headers = [*(insert_headers if is_insert else headers_of_version)(version), *passed]
        data = codec.encode(record)
        return Run(Stored(version, data), (key, data, headers))


def _is_plain(request: CommandHeaders, key: bytes) -> bool:
    """Return whether a command does no more than merge or delete the record of its key."""
    if request.expiration is not None or request.correlation_id or request.remove is not None:
        return False
    return request.expect_version < 0 and request.sow_key in (None, key)
