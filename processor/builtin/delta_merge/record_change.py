"""The change that a command makes to the record of its key: groups, enrichment, rules, merge, removal, completion."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Final

from processor.api import RecordRejected
from processor.merge import check_removable, diff, insert, removal_paths, remove_path, remove_paths
from processor.values.pointer import names
from processor.wire.command import TTL_MS_MAX, ttl_ms_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.api import Change, Codec, Command, Context, Headers, Incomplete, Stored, Value
    from processor.builtin.delta_merge.compiled_settings import CompiledSettings
    from processor.config import TopicConfig
    from processor.merge import GroupedUpdate, KeyFields


EXPIRED_MAX: Final = 2_000
"""Most records that expire at once: some 20 ms. When many are due together, input is processed in between."""


class Lifetime:
    """The time to live of a topic's records."""

    def __init__(self, expiration_s: float | None) -> None:
        """Create it from the topic's setting `expiration`; None is for ever."""
        self._topic_ms = 0
        if expiration_s is not None:
            self._topic_ms = max(1, round(min(expiration_s * 1000, TTL_MS_MAX)))
        self.is_limited = self._topic_ms > 0
        """True if records of the topic expire by default."""

    def begin(self, now_ms: int, asked: bytes | None, kept: bytes) -> tuple[int, bytes]:
        """The time when a record expires, 0 for never, and its own time to live if that is not the topic's.

        Args:
            now_ms: the time of the update, which it counts from.
            asked: header `expiration` of the update; None where there is none.
            kept: the record's own time to live, for an update that leaves it; empty for the topic's.
        """
        own = kept if asked is None else asked
        own_ms = ttl_ms_of(own) if own else self._topic_ms
        return (now_ms + own_ms if own_ms else 0), (b"" if own_ms == self._topic_ms else own)


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


class StoredUnreadable(RecordRejected):
    """The record that a command meets cannot be parsed, as after a change of its schema."""


class RecordChange:
    """Applies the commands of one topic to parsed records, and counts the sequence groups of late updates."""

    def __init__(self, context: Context, settings: TopicConfig, compiled: CompiledSettings) -> None:
        """Create it for a partition.

        Args:
            context: the partition's.
            settings: the topic's.
            compiled: the same, compiled.
        """
        self._context = context
        self._settings = settings
        self._key, self._policy, self._merge, self._rules = (
            compiled.key,
            compiled.policy,
            compiled.merge,
            compiled.rules,
        )
        self._codec: Codec = context.codec
        self._enrich = compiled.enrich
        self._nulls_missing, self._merge_depth = settings.null_policy == "ignore", settings.merge_depth
        self.of = self._of_type_with_defaults if self._codec.completes else self._of

    def prepare(
        self, old: Stored | None, command: Command, body: Value, remove: Value, own_stamps: bytes = b""
    ) -> tuple[Value, GroupedUpdate | None]:
        """Take an update through sequence groups and enrichment: the steps before the merge.

        Groups decide first, so that enrichment computes from the values that the record will have; the fields that it
        computes are as new as the record. Where enrichment sets the field that a group goes by, it comes first instead.

        Args:
            old: the record before; None if there is none.
            command: `publish` or `delta_publish`.
            body: the parsed message, which is used up.
            remove: the parsed header `remove`; None where there is none.
            own_stamps: the stamps of a full record that was in another place before; empty: it has none.

        Returns:
            The message, and the update as the groups see it; None without groups.

        Raises:
            RecordRejected: the record before cannot be read, or a group or an enricher rejects the message.
        """
        rules, enrich = self._rules, self._enrich
        if enrich is None or rules is None or not rules.has_groups:
            grouped = self._grouped(old, command, body, own_stamps, is_plain=enrich is None and remove is None)
            return (body if enrich is None else self._enriched(old, command, body, remove, None)), grouped
        message = deepcopy(body)
        grouped = self._grouped(old, command, body, own_stamps)
        assert grouped is not None
        before = grouped.guarded_values(body)
        body = self._enriched(old, command, body, remove, grouped)
        if not grouped.note_computed(body, before):
            body = self._enriched(old, command, message, remove, None)
            grouped = self._grouped(old, command, body)
        return body, grouped

    def _grouped(
        self, old: Stored | None, command: Command, body: Value, own_stamps: bytes = b"", *, is_plain: bool = False
    ) -> GroupedUpdate | None:
        """Let the sequence groups decide about a message, in place; None without groups."""
        if self._rules is None or not self._rules.has_groups:
            return None
        stamps = b"" if old is None else old.group_stamps
        is_delta = command != "publish"
        is_plain = is_plain and not own_stamps
        grouped = self._rules.update(self.before(old, command), body, stamps, is_delta=is_delta, is_plain=is_plain)
        if not is_delta and own_stamps:
            grouped.complete_stamped(body, own_stamps)
        elif not is_delta:
            grouped.complete(body)
        else:
            grouped.reduce(body)
        return grouped

    def _enriched(
        self, old: Stored | None, command: Command, body: Value, remove: Value, grouped: GroupedUpdate | None
    ) -> Value:
        """The message after enrichment."""
        assert self._enrich is not None
        is_delta = command == "delta_publish"
        is_ruled = is_delta and self._rules is not None and self._rules.has_merge_rules
        after = None
        if is_ruled or remove or (grouped is not None and grouped.gone):
            after = partial(self._after, old, command, remove, grouped)
        return self._enrich(body, self.before(old, command), is_delta, after)

    def _after(
        self, old: Stored | None, command: Command, remove: Value, grouped: GroupedUpdate | None, body: Value
    ) -> Value:
        """The record as a message would leave it; the message is not changed."""
        body, record, gone = deepcopy(body), self.before(old, command), []
        if command == "publish":
            merged = body
        else:
            if self._rules is not None:
                gone = self._rules.change(record, body, () if grouped is None else grouped.overruled)
            merged = (insert(body, self._policy) if record is None else self._merge(record, body)).record
        self._remove(merged, remove, grouped, gone)
        return merged

    def _of_type_with_defaults(
        self, old: Stored | None, command: Command, body: Value, remove: Value, grouped: GroupedUpdate | None
    ) -> Change:
        """Apply a command where the message type adds defaults or drops fields that it cannot hold."""
        change = self._of(old, command, body, remove, grouped)
        has_lost = self._codec.complete(change.record)
        if not (has_lost or change.removed):
            return change
        # What was removed may be back, as a default; what was lost is not in the delta yet.
        return diff(self._parsed(old), change.record)

    def _of(
        self, old: Stored | None, command: Command, body: Value, remove: Value, grouped: GroupedUpdate | None
    ) -> Change:
        """Apply a command that is no delete.

        Args:
            old: the record before; None if there is none.
            command: `publish` or `delta_publish`.
            body: the parsed message, which is used up.
            remove: the parsed header `remove`; None where there is none.
            grouped: the update as the sequence groups see it; None without groups.

        Raises:
            StoredUnreadable: the record before cannot be read; nothing of the body is used up.
            RecordRejected: the command contradicts the record, or a rule cannot be applied.
        """
        if grouped is None or grouped.record is None:
            record = self._parsed(old)
        else:
            record, grouped.record = grouped.record, None  # It is used up.
        gone: list[str] = []
        if command == "publish":
            change = diff(record, body)
        else:
            if record is not None:
                self._key.protect(record, body, self._nulls_missing, self._merge_depth)
            if self._rules is not None:
                gone = self._rules.change(record, body, () if grouped is None else grouped.overruled)
            change = insert(body, self._policy) if record is None else self._merge(record, body)
        if gone or remove is not None or (grouped is not None and grouped.gone):
            # The removal comes after the merge and may undo parts of it: the change is the difference of both.
            self._remove(change.record, remove, grouped, gone)
            change = diff(self._parsed(old), change.record)
        if grouped is not None and (stale := grouped.stale_groups):
            self._context.count("stale_group", stale)
        return change

    def add_key_field(self, key: bytes, old: Stored | None, body: Value) -> bool:
        """Add the key field to a full record that lacks it, in place; whether it did (producers.md, rule 6).

        Raises:
            RecordRejected: `missing_key`: the Kafka key does not have it.
        """
        if self._settings.key_in_body == "optional":
            return False
        name = self._key.only_name
        if name is not None and name in body:  # As nearly always.
            return False
        return self._key.complete(body, key, self.before(old, "publish"))

    def check_incomplete(self, old: Stored | None, message: Incomplete) -> None:
        """Count a message without fields that the record does not have either.

        Raises:
            RecordRejected: `schema_mismatch`: there is no record, and the message is not to be stored without them.
        """
        record = self._parsed(old)
        if record is None and not message.is_stored:
            raise RecordRejected(
                "schema_mismatch",
                f"the message does not have the value of {', '.join(message.lacking):.200}, and there is no record "
                "that has it; publish all of it",
            )
        if record is None or any(name not in record for name in message.lacking):
            self._context.count("incomplete_row")

    def _remove(self, merged: Value, remove: Value, grouped: GroupedUpdate | None, gone: Sequence[str]) -> None:
        """Remove from a merged record, in place, what rules, header `remove` and groups remove.

        Raises:
            RecordRejected: `bad_header`: the header cannot be carried out.
        """
        key_fields = self._key.pointers
        for pointer in gone:
            remove_path(merged, names(pointer))
        if grouped is None:
            if remove is not None:
                remove_paths(merged, remove, key_fields)
            return
        pointers = grouped.gone
        if remove is not None:
            paths = removal_paths(remove, key_fields)
            check_removable(merged, paths)
            pointers = pointers + grouped.removals(merged, paths)
        for pointer in pointers:
            remove_path(merged, names(pointer))

    def before(self, old: Stored | None, command: Command) -> Value | None:
        """The record that a command meets; None for a full record that replaces one that cannot be read.

        Raises:
            StoredUnreadable: it cannot be read, and the command is none that replaces it.
        """
        try:
            return self._parsed(old)
        except StoredUnreadable:
            if command != "publish":
                raise
            return None

    def _parsed(self, old: Stored | None) -> Value | None:
        """The record before, parsed afresh: a merge changes it in place."""
        if old is None:
            return None
        try:
            return self._codec.decode_own(old.value)
        except RecordRejected as error:
            raise StoredUnreadable(
                error.reason,
                f"the record that it meets, version {old.version}, cannot be read any more: {error.detail}; publish it "
                "in full, or delete it",
            ) from None
