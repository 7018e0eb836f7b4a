"""The topics of a processor under test, with their transactions; its state is restored from them, and compared.

A difference is a state that a crash would change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from processor.api import Processor
from processor.errors import unknown_name
from processor.hosting.forwarded import is_ours
from processor.record import Record
from processor.store.layered_state import LayeredState
from processor.wire.publisher_mark import mark_text
from processor.wire.record_headers import source_offset, stored_from, version_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from processor.hosting.pipeline import Pipeline
    from processor.record import Headers, Outgoing, Stored
    from processor.runtime.task import Task
    from processor.store.contract import Store


@dataclass(slots=True)
class OutputLog:
    """One partition of an output topic."""

    committed: list[Record] = field(default_factory=list)
    """The records of committed transactions."""
    open: list[Record] = field(default_factory=list)
    """Sent in the open transaction."""
    end: int = 0
    """The offset of the next record."""

    def send(self, key: bytes | None, value: bytes | None, headers: Headers, now_ms: int) -> None:
        """Write a record in the open transaction, which begins with its first one."""
        self.open.append(Record(key, value, headers, self.end, now_ms))
        self.end += 1

    def finish(self, *, commit: bool) -> list[Record]:
        """End the transaction, which takes an offset for its marker; return the records that it committed."""
        done = self.open if commit else []
        self.end += bool(self.open)
        self.committed += done
        self.open = []
        return done


class OutputLogs(dict[str, OutputLog]):
    """The outputs of a processor by role; another role is an error that names the close one."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Begin without records; that of a downstream output has the partition in its name, such as `parts@3`."""
        super().__init__({role: OutputLog() for role in pipeline.roles})
        for role, outlet in pipeline.outlets.items():
            self.update({f"{role}@{number}": OutputLog() for number in range(outlet.partitions)})

    def send(self, task: Task, role: str, outgoing: Sequence[Outgoing], now_ms: int) -> None:
        """Send records of a task in the open transaction."""
        log = self[role]
        for key, value, headers in outgoing:
            log.send(key, value, headers, now_ms)
        if outgoing and role in {"sow", "mark"}:
            task.await_delivery(role)(log.end - 1)

    def finish(self, *, commit: bool) -> dict[str, list[Record]]:
        """End the transaction of all outputs; return the records that it committed."""
        return {role: log.finish(commit=commit) for role, log in self.items()}

    def restore(self, task: Task, records: Sequence[Record], now_ms: int) -> None:
        """Restore a task from its outputs, and its table from its input."""
        if task.pipeline.has_state:
            state, sow = task.state, self["sow"]
            changes = {}
            for record in sow.committed:
                if record.offset >= state.position:
                    assert record.key is not None, "a SOW record has a key"
                    changes[record.key] = stored_from(record)
            state.restore(changes, sow.end, now_ms)
        if (table := task.table) is not None:
            new = records[table.position :]
            table.restore(
                {record.key: stored_from(record) for record in new if record.key is not None}, len(records), now_ms
            )
        if (marks := task.marks) is not None:
            log = self["mark"]
            changed = [
                (record.key or b"", mark_text(record.key or b"", record.value, record.headers))
                for record in log.committed
                if record.offset >= marks.position
            ]
            marks.restore(changed, log.end)

    def __missing__(self, role: str) -> OutputLog:
        """Refuse a role."""
        raise LookupError(unknown_name("output", role, list(self)))


_REMEDY: Final = "write both with one call: self.put(key, record), or context.put"
_NUMBER: Final = re.compile(rb"\d+")


class WatchedState(LayeredState):
    """A state that lists the keys that its processor has changed."""

    def __init__(self, store: Store, *, cache_bytes: int) -> None:
        """Put the layers before a store."""
        super().__init__(store, cache_bytes=cache_bytes)
        self.changed_keys: dict[bytes, None] = {}
        """The keys changed since the last commit or rollback, in order; the owner clears them."""

    def put_many(self, changes: Mapping[bytes, Stored | None]) -> None:
        """Stage changes, and list their keys."""
        self.changed_keys.update(dict.fromkeys(changes))
        super().put_many(changes)


class StateCheck:
    """The states as a restore would make them of the committed SOW records, to be compared with the processor's."""

    def __init__(self, processor: str, partition: int | None, *, is_repeatable: bool = False) -> None:
        """Begin without a record.

        Args:
            processor: its name in messages.
            partition: the partition, where each key should be that of an input record; None: any key may be written.
            is_repeatable: whether each record should have a `source`.
        """
        self.input_keys: set[bytes] = set()
        """The keys of the input records until now."""
        self._processor = processor
        self._partition = partition
        self._is_repeatable = is_repeatable
        self._restored: dict[bytes, Stored] = {}
        self._has_put = False

    @classmethod
    def of(cls, pipeline: Pipeline, partition: int) -> StateCheck:
        """Create the check of a processor; one that extends ours writes the keys and headers that ours does."""
        kind = pipeline.processor_type
        is_trusted = any(is_ours(base) for base in kind.__mro__ if issubclass(base, Processor))
        may_write_any = is_trusted or kind.input.role not in {"publish", "sow"} or pipeline.topic.partitions == 1
        return cls(
            f"{kind.__name__} ({pipeline.name})",
            None if may_write_any else partition,
            is_repeatable=kind.is_repeatable and not is_trusted,
        )

    def check(self, state: WatchedState, sow: Sequence[Record]) -> None:
        """Compare the state with the SOW records of the transaction that is about to be committed.

        Raises:
            AssertionError: a SOW record has no version, no source although the processor is repeatable, or a key that
                other partitions would write, too; or the state of a key is not its SOW record.
        """
        changed = dict(state.changed_keys)
        self._has_put = self._has_put or bool(changed)
        restored: dict[bytes, Stored | None] = {}
        for record in sow:
            assert record.key is not None, f"{self._processor}: a SOW record has no key"
            self._check_version(record)
            self._check_source(record)
            self._check_key(record)
            restored[record.key] = stored_from(record)
        # A processor that never writes state uses SOW as an output like another.
        keys = [*changed, *(key for key in restored if key not in changed)] if self._has_put else []
        states = state.get_many(keys)
        for key in keys:
            after_crash = restored[key] if key in restored else self._restored.get(key)
            if states[key] != after_crash:
                raise AssertionError(self._difference(key, states[key], after_crash, is_sent=key in restored))
        self._take(restored.items())
        state.changed_keys.clear()

    def _take(self, restored: Iterable[tuple[bytes, Stored | None]]) -> None:
        for key, stored in restored:
            if stored is None:
                self._restored.pop(key, None)
            else:
                self._restored[key] = stored

    def _check_version(self, record: Record) -> None:
        if version_of(record.headers) is None:
            raise AssertionError(
                f"{self._processor}: the SOW record of key {record.key!r:.100} has no header `version` with a decimal "
                f"number, but {record.headers!r:.200}: a crash would restore it as another version, and a conflated "
                "topic would reject it; self.put(key, record) writes it"
            )

    def _check_source(self, record: Record) -> None:
        if self._is_repeatable and source_offset(record.headers) is None:
            raise AssertionError(
                f"{self._processor}: the SOW record of key {record.key!r:.100} has no header `source`, and the "
                "processor is repeatable: after a crash of a worker without transactions the change would be made "
                "twice. self.put writes it in `process_record`; one that puts in `flush` or `punctuate` is not "
                "repeatable"
            )

    def _check_key(self, record: Record) -> None:
        key = record.key
        if self._partition is None or not key or record.value is None or key in self.input_keys:
            return
        if b"%d" % self._partition in _NUMBER.findall(key) or any(part in key for part in self.input_keys if part):
            return
        raise AssertionError(
            f"{self._processor}: the SOW record of key {key!r:.100} is under no key of an input record: such records "
            "may be in several partitions, and each of these would write a record of its own under it. Send them to "
            "the partition of the key with `into` (Context.forward_to), or name the partition in the key; for a topic "
            "of one partition, test with topic=TopicConfig(partitions=1)"
        )

    def _difference(self, key: bytes, state: Stored | None, after_crash: Stored | None, *, is_sent: bool) -> str:
        is_now = f"{self._processor}: the state of key {key!r:.100} is {_text(state)}"
        would_be = f"after a crash it would be {_text(after_crash)}"
        why = "its SOW record has another value" if is_sent else "no SOW record was forwarded with it"
        return f"{is_now}, but {why}: {would_be}; {_REMEDY}"


def _text(stored: Stored | None) -> str:
    if stored is None:
        return "gone"
    text = f"version {stored.version}, {stored.value!r:.100}"
    if stored.expires_at_ms:
        text += f", expires at {stored.expires_at_ms} ms"
    if stored.source_offset >= 0:
        text += f", from offset {stored.source_offset}"
    return text
