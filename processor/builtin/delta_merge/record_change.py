"""The change that a command makes to the record of its key: rules, merge, removal, completion by the message type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processor.errors import RecordRejected
from processor.merge import diff, insert, remove_paths

if TYPE_CHECKING:
    from processor.api import Change, Codec, Command, Context, Stored, Value
    from processor.builtin.delta_merge.compiled_settings import CompiledSettings
    from processor.config import TopicConfig
    from processor.merge import SequenceGroup


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
        self._nulls_missing = settings.null_policy == "ignore"

    def of(self, old: Stored | None, command: Command, body: Value, remove: Value) -> Change:
        """Apply a command that is no delete.

        Args:
            old: the record before; None if there is none.
            command: `publish` or `delta_publish`.
            body: the parsed message, which is used up.
            remove: the parsed header `remove`; None where there is none.

        Raises:
            StoredUnreadable: the record before cannot be read; nothing of the body is used up.
            RecordRejected: the command contradicts the record, or a rule cannot be applied.
        """
        change = self._applied(old, command, body, remove)
        return self._completed(old, change) if self._codec.completes else change

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

    def _applied(self, old: Stored | None, command: Command, body: Value, remove: Value) -> Change:
        record = self._parsed(old)
        if command != "publish" and record is not None:
            self._key.protect(record, body, self._nulls_missing, self._settings.merge_depth)
        rules = self._rules
        late: list[SequenceGroup] = []
        stale: set[SequenceGroup] = set()
        if rules is not None:
            late = rules.late(record, body)
            stale = rules.keep(late, record, body) if command == "publish" else rules.change(record, body, late)
        if command == "publish":
            change = diff(record, body)
        elif record is None:
            change = insert(body, self._policy)
        else:
            change = self._merge(record, body)
        if remove is not None:
            # The removal comes after the merge and may undo parts of it: the change is the difference of both.
            remove_paths(change.record, remove, self._key.pointers)
            record = self._parsed(old)
            if rules is not None and late:
                stale |= rules.keep(late, record, change.record)
            change = diff(record, change.record)
        if stale:
            self._context.count("stale_group", len(stale))
        return change

    def _completed(self, old: Stored | None, change: Change) -> Change:
        """Complete a change where the message type adds defaults or drops fields that it cannot hold."""
        has_lost = self._codec.complete(change.record)
        if not (has_lost or change.removed):
            return change
        # What was removed may be back, as a default; what was lost is not in the delta yet.
        return diff(self._parsed(old), change.record)

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
