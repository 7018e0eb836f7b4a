"""A batch of plain deltas merged in both ways, by the compiled fold and in parts, and compared."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from processor.api import Outgoing, Record, Stored
from processor.builtin.delta_merge.delta_merge import DeltaMerge
from processor.builtin.delta_merge.plain import compiled_fold
from processor.codec.json import JsonCodec
from processor.config import TopicConfig
from processor.hosting.context import TaskContext
from processor.hosting.pipeline import Pipeline
from processor.store.layered_state import LayeredState
from processor.store.memory import MemoryStore
from processor.wire.partition_marks import Lives

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from processor.builtin.delta_merge.fast_path_json import CompiledDeltas


States = dict[bytes, "Stored | None"]

BASE = 1_000
"""What is added to the first versions of lives."""
POLICIES = ("ignore", "set", "remove")

NAME = "processor.builtin.delta_merge.fast_path_json"
HAS_COMPILED = importlib.util.find_spec(NAME) is not None
needs_compiled = pytest.mark.skipif(not HAS_COMPILED, reason="compiled_deltas was not compiled: no C compiler")


class Outcome(NamedTuple):
    """The effects of a batch."""

    sow: list[Outgoing]
    delta: list[Outgoing]
    changed: list[tuple[bytes, Stored | None]]
    states: States
    left: list[Record]
    """The records that fail."""


class InParts:
    """The merge in parts, called as the compiled fold is."""

    def __init__(self, settings: TopicConfig, codec: JsonCodec, lives: Lives) -> None:
        pipeline = Pipeline.of(DeltaMerge, settings, name="orders", topic=settings)
        context = TaskContext(pipeline, 0, codec, LayeredState(MemoryStore(), cache_bytes=1024), lives=lives)
        merge = DeltaMerge()
        merge.init(context, settings)
        self._commands = merge._commands

    def __call__(
        self,
        records: Sequence[Record],
        states: States,
        changed: States,
        sow: list[Outgoing],
        delta: list[Outgoing],
        leave: Callable[[Record], int],
        _: object,
    ) -> None:
        """Merge the records; `leave` gets those that fail."""
        commands = self._commands
        commands.begin(states)
        commands.changed, commands.sow, commands.delta = changed, sow, delta
        for record in records:
            try:
                commands.merge(record)
            except Exception:  # noqa: BLE001 - of a damaged record, too
                leave(record)


class BothWays:
    """The ways of one topic."""

    def __init__(self, **settings: Any) -> None:
        self.settings = TopicConfig(**settings)
        self.codec = JsonCodec()
        self._lives = Lives(base=BASE)
        compiled = compiled_fold(self.settings, self.codec, self._lives, partition=0, partitions=1)
        assert compiled is not None
        self.compiled: CompiledDeltas = compiled
        self.in_parts = InParts(self.settings, self.codec, self._lives)
        self.left_by_compiled = 0
        self.merged = 0
        """In all."""
        self.merged_after_all = 0
        """Of these, the ones that were merged in parts."""

    def merge(self, records: list[Record], states: States) -> Outcome:
        """Merge a batch in both ways and compare the outcomes; return the outcome.

        Records that the compiled way leaves are then merged in parts; those that fail are left.
        """
        self._lives.ended = 0  # Both begin with the same lives; one that a delete ends raises it.
        expected = Outcome([], [], [], dict(states), [])
        changed: States = {}
        self.in_parts(records, expected.states, changed, expected.sow, expected.delta, _leaving(expected), _never)
        expected.changed.extend(changed.items())

        self._lives.ended = 0
        found = Outcome([], [], [], dict(states), [])
        changed = {}

        def take(record: Record) -> int:
            before = len(found.sow)
            self.in_parts([record], found.states, changed, found.sow, found.delta, _leaving(found), _never)
            self.left_by_compiled += 1
            self.merged_after_all += len(found.sow) - before
            return 0

        self.compiled(records, found.states, changed, found.sow, found.delta, take, _never)
        found.changed.extend(changed.items())
        assert found == expected
        assert all(state is None or type(state) is Stored for state in found.states.values())
        self.merged += len(found.sow)
        return found

    def one(self, record: bytes | None, delta: bytes, key: bytes = b"7", version: int = 1) -> Outcome:
        """Merge one delta in both ways; return the outcome."""
        state = None if record is None else Stored(version, record, 0, -1, b"")
        return self.merge([Record(key, delta, None, 0, 0)], {key: state})

    def leaves(self, record: bytes | None, delta: bytes, key: bytes = b"7", version: int = 1) -> bool:
        """Return whether the compiled way leaves it to the other one."""
        before = self.left_by_compiled
        self.one(record, delta, key, version)
        return self.left_by_compiled > before

    def written(self, text: bytes) -> bytes:
        """A record as it is stored."""
        return self.codec.encode(self.codec.decode(text))

    def is_ours(self, text: bytes) -> bool:
        """Return whether a text is one that we would have stored."""
        try:
            return self.codec.encode(self.codec.decode_own(text)) == text
        except Exception:  # noqa: BLE001 - whatever it is, it is not ours
            return False


def _leaving(outcome: Outcome) -> Callable[[Record], int]:
    """Return a function that collects the records that are left."""

    def take(record: Record) -> int:
        outcome.left.append(record)
        return 0

    return take


def _never(_: int) -> bool:
    return False
