"""A client's copy of one subscription, kept as the messages say."""

from __future__ import annotations

import copy
from typing import Any

from tests.programs.gateway.queries import Body, Query


class Holder:
    """A client's copy of one subscription."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.records: dict[str, tuple[Body, int]] = {}
        self.stale: set[str] | None = None
        self.bookmark: Any = None
        self.is_whole = False

    def hear(self, message: Any) -> None:
        """Apply a message."""
        key = message.sow_key
        if message.command == "group_begin":
            self.stale = set(self.records)
        elif message.command == "group_end":
            for gone in self.stale or ():
                self.records.pop(gone, None)
            self.stale, self.is_whole = None, True
        elif message.command == "oof":
            self.records.pop(key, None)
        elif message.delta:
            assert self.query.is_delta
            record, version = self.records[key]
            if not self.query.no_empties:
                assert message.delta_base is None or message.delta_base <= version, "a gap"
            _merge(record, copy.deepcopy(message.data))
            for path in message.removed:
                _remove(record, path)
            self.records[key] = (record, message.version)
        else:
            self.records[key] = (copy.deepcopy(message.data), message.version)
            if self.stale is not None:
                self.stale.discard(key)

    @property
    def held(self) -> dict[str, Body]:
        """The records by key."""
        return {key: record for key, (record, _) in self.records.items()}


def _merge(record: Body, delta: Body) -> None:
    for name, value in delta.items():
        if isinstance(value, dict) and isinstance(record.get(name), dict):
            _merge(record[name], value)
        else:
            record[name] = value


def _remove(record: Body, path: str) -> None:
    *parents, last = path.split("/")[1:]
    for part in parents:
        record = record.get(part, {})
    record.pop(last, None)
