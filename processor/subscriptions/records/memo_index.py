"""The memo index: finds records by the value at a path, so that a snapshot of a few need not scan all.

A path is indexed once a second query asks for equality there, as with AMPS' memo indexes: many subscribers that
each join with a `/symbol = 'X'` of their own pay for one scan between them.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

from processor.errors import SowstreamError
from processor.filter.value import number
from processor.subscriptions.records.path_index import COMBINED_MAX, DeclaredIndex, PathBuild, PathIndex
from processor.subscriptions.request.conditions import required_keys, required_values
from processor.values.key_text import key_text
from processor.values.pointer import names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from processor.filter import Filter
    from processor.filter.syntax_tree import Scalar
    from processor.record import Record, Value
    from processor.subscriptions.request.conditions import Parts
    from processor.subscriptions.request.subscribed_topic import RecordView, Topic
    from processor.subscriptions.request.turn import Turn
    from processor.subscriptions.request.update import Update

PATHS_MAX: Final = 4
"""Indexed paths; another one replaces the least recently used one."""
ENTRIES_MAX: Final = 1_000_000
"""Indexed values at one path, of all records: 30 bytes each where many have the same, 100 where each has its
own. A path with more is not indexed, and always scanned."""
_NOTED_MAX: Final = 64
FOUND_MAX: Final = 200_000
"""Records that are looked up; a scan takes less memory for more."""

FOUND_IN_TURN_MAX: Final = 5_000
"""The same where others wait: so many are looked up within a turn, and a scan goes on later."""


class MemoIndex:
    """The memo index of an engine: the indexed paths, with the keys of the records by value."""

    def __init__(
        self, topic: Topic, view: RecordView, declared: Iterable[tuple[str, ...]] = (), turn: Turn | None = None
    ) -> None:
        """Begin without an index.

        Args:
            topic: the topic.
            view: its records.
            declared: lists of paths that are always indexed, without a limit; `build_declared` does it.
            turn: the limit of one step of `advance`, which builds the other indexes; None: a query builds them at once.
        """
        self._turn = turn
        self._builds: dict[Parts, PathBuild] = {}
        self._declared = {DeclaredIndex.parts_of(paths): None for paths in declared}
        self._built: dict[tuple[Parts, ...], DeclaredIndex] = {}
        self._topic = topic
        self._view = view
        self._paths: dict[Parts, PathIndex] = {}  # The one asked for last comes last.
        self._once: dict[Parts, None] = {}  # Paths that were asked for, and are not kept in mind.
        self._too_large: dict[Parts, None] = {}  # Of these, what was found to be too much.

    def __bool__(self) -> bool:
        """Return whether a declared index must follow the updates."""
        return bool(self._built)

    def records(self, selection: Filter | None) -> Iterable[Record] | None:
        """Records that include all matches; None: only a scan finds them."""
        found_max = FOUND_MAX if self._turn is None else FOUND_IN_TURN_MAX
        required = {} if selection is None else required_values(selection.tree)
        by_key = None if selection is None else _given_keys(selection, found_max)
        if by_key is None:
            by_key = self._by_key(required)
        if by_key is not None:
            return self._found(by_key)
        if (keys := self._declared_keys(required)) is not None and (self._turn is None or len(keys) <= found_max):
            return self._found(keys)
        if required and not any(parts in self._paths for parts in required):
            for parts in required:
                self._asked(parts)
        key_sets = [self._keys(parts, constants) for parts, constants in required.items() if parts in self._paths]
        keys = min(key_sets, key=len, default=None)
        if keys is None or len(keys) > found_max:
            return None
        return self._found(keys)

    def advance(self) -> None:
        """Go on with an index that is being built, for one turn."""
        if not self._builds:
            return
        assert self._turn is not None
        parts, build = next(iter(self._builds.items()))
        try:
            is_done = build.advance(self._turn)
        except SowstreamError:  # The scan of a query raises it.
            del self._builds[parts]
            return
        if build.path.entries > ENTRIES_MAX:
            del self._builds[parts]
            _note(self._too_large, parts)
        elif is_done:
            del self._builds[parts]
            self._add(parts, build.path)

    def changed(self, change: Update) -> None:
        """Take an update."""
        for build in self._builds.values():
            build.changed(change)
        if not self._paths and not self._built:
            return
        try:
            old, new = change.old_value, change.new_value
        except SowstreamError:  # The error is raised where the record is needed.
            self.clear()
            return
        for declared in self._built.values():
            declared.changed(change.key, old, new)
        for parts, path in list(self._paths.items()):
            path.changed(change.key, old, new)
            if path.entries > ENTRIES_MAX:
                del self._paths[parts]
                _note(self._too_large, parts)

    def clear(self) -> None:
        """Drop the index: its content is out of date."""
        self._paths.clear()
        self._built.clear()
        self._builds.clear()

    def build_declared(self) -> None:
        """Build the declared indexes that are not there; an unreadable record leaves them out, and a scan raises it."""
        missing = {parts: DeclaredIndex(parts) for parts in self._declared if parts not in self._built}
        if not missing:
            return
        try:
            for record in self._view.scan():
                assert record.key is not None
                value = self._topic.value(record)
                for index in missing.values():
                    index.changed(record.key, None, value)
        except SowstreamError:
            return
        self._built |= missing

    def _declared_keys(self, required: Mapping[Parts, tuple[Scalar, ...]]) -> Collection[bytes] | None:
        """The keys that the declared index with the most paths finds; None: none can be used."""
        usable = [index for index in self._built.values() if all(parts in required for parts in index.parts)]
        found = (index.keys(required) for index in sorted(usable, key=lambda index: -len(index.parts)))
        return next((keys for keys in found if keys is not None), None)

    def _found(self, keys: Iterable[bytes]) -> list[Record]:
        return [record for record in self._view.get_many(list(keys)).values() if record is not None]

    def _by_key(self, required: Mapping[Parts, tuple[Scalar, ...]]) -> list[bytes] | None:
        """The keys of all records that can match, where the key fields are asked for; None where they are not.

        By texts alone: a record equal to the number 7 may have the key `7`, `07` or `7.0`. Of groups by texts that
        stand in keys as they are: `true` may have the key `1` or `"true"`. And by members of the record alone: at
        `/a/id` a filter goes through the elements of an array `a`, whose members are no key fields.
        """
        fields = [names(pointer) for pointer in self._topic.key.pointers]
        choices = [required.get(path, ()) for path in fields]
        if not fields or not all(choices) or math.prod(map(len, choices)) > COMBINED_MAX:
            return None
        if any(len(path) > 1 for path in fields):
            return None
        keys = []
        for texts in itertools.product(*choices):
            if any(type(text) is not str or not text or number(text) is not None for text in texts):
                return None
            if self._topic.has_group_keys and any(key_text(text) != text for text in texts):
                return None
            record: Value = {name: text for (name,), text in zip(fields, texts, strict=True)}
            if (key := self._topic.key.text(record)) is not None:
                keys.append(key.encode(errors="surrogatepass"))
        return keys

    def _keys(self, parts: Parts, constants: Iterable[Scalar]) -> Collection[bytes]:
        path = self._paths[parts] = self._paths.pop(parts)
        return path.keys(constants)

    def _asked(self, parts: Parts) -> None:
        """Note a query of a path: the second one makes an index worth its memory."""
        if parts not in self._once:
            _note(self._once, parts)
            return
        if parts in self._too_large:
            return  # To find that out again would take as long as the scan that is needed anyway.
        if self._turn is not None:
            if len(self._builds) < PATHS_MAX and parts not in self._builds:
                self._builds[parts] = PathBuild(parts, self._topic, self._view, self._turn)
        elif (path := self._build(parts)) is not None:
            self._add(parts, path)

    def _add(self, parts: Parts, path: PathIndex) -> None:
        self._paths[parts] = path
        if len(self._paths) > PATHS_MAX:
            del self._paths[next(iter(self._paths))]

    def _build(self, parts: Parts) -> PathIndex | None:
        """Index all records at a path; None if there are too many values."""
        path = PathIndex(parts)
        try:
            for record in self._view.scan():
                assert record.key is not None
                path.add(record.key, self._topic.value(record))
                if path.entries > ENTRIES_MAX:
                    _note(self._too_large, parts)
                    return None
        except SowstreamError:  # The scan that follows raises it.
            return None
        return path


def _given_keys(selection: Filter, found_max: int) -> list[bytes] | None:
    """The keys of all records that can match, where a filter asks for keys by `SOW_KEY()`; None where it does not.

    The text of a key is the key itself, unless it has an escape in it.
    """
    texts = required_keys(selection.tree)
    if texts is None or len(texts) > found_max:
        return None
    keys = [text.encode(errors="surrogatepass") for text in texts if type(text) is str and text and "\\x" not in text]
    return keys if len(keys) == len(texts) else None


def _note(noted: dict[Parts, None], parts: Parts) -> None:
    """Note a path; the oldest of too many is forgotten."""
    noted[parts] = None
    if len(noted) > _NOTED_MAX:
        del noted[next(iter(noted))]
