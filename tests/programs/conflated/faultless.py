"""A model of a conflater without fault, which gives the evidence that a run should leave."""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from itertools import islice
from typing import Any

from tests.programs.conflated.evidence import Delivery, Evidence, Update
from tests.programs.conflated.walk import Walk

_BEGAN_MS = 1_700_000_000_000


def evidence(seed: int, count: int, keys: int, interval_ms: int) -> Evidence:
    """The evidence for one update a millisecond; each delivery is sent 20 ms late, and received 5 ms later."""
    paper = _Paper(interval_ms)
    for offset, (key, value, headers) in enumerate(islice(Walk(seed, keys).records(), count)):
        header_texts = {name: text.decode() for name, text in headers}
        paper.take(key, Update(offset, _BEGAN_MS + offset, int(header_texts["version"]), value), header_texts)
    paper.deliver_until(_BEGAN_MS + count + interval_ms)
    return Evidence(paper.updates, paper.sow, paper.delta)


class _Paper:
    """The updates, and the pending and sent deliveries."""

    def __init__(self, interval_ms: int) -> None:
        self.updates: dict[bytes, list[Update]] = defaultdict(list)
        self.sow: dict[bytes, list[Delivery]] = defaultdict(list)
        self.delta: dict[bytes, list[Delivery]] = defaultdict(list)
        self._interval_ms = interval_ms
        self._due: list[tuple[int, bytes]] = []
        self._pending: dict[bytes, list[Update]] = {}
        self._there: dict[bytes, Update] = {}
        self._offset = 0

    def take(self, key: bytes, update: Update, header_texts: dict[str, str]) -> None:
        """Process one update, after the deliveries that are due before it."""
        self.deliver_until(update.timestamp_ms)
        self.updates[key].append(update)
        if key not in self._pending:
            heapq.heappush(self._due, (update.timestamp_ms + self._interval_ms, key))
        self._pending.setdefault(key, []).append(update)
        if "no_conflate" in header_texts:
            self._deliver(key, update.timestamp_ms, {"no_conflate": "true"})

    def deliver_until(self, now_ms: int) -> None:
        """Send the deliveries that are due by a time."""
        while self._due and self._due[0][0] <= now_ms:
            due_ms, key = heapq.heappop(self._due)
            # A key that was delivered at once has a new interval since then.
            if key in self._pending and self._pending[key][0].timestamp_ms + self._interval_ms == due_ms:
                self._deliver(key, due_ms, {})

    def _deliver(self, key: bytes, now_ms: int, header_texts: dict[str, str]) -> None:
        folded = self._pending.pop(key)
        last, before = folded[-1], self._there.pop(key, None)
        if last.value is None and before is None:
            return
        if last.value is not None:
            self._there[key] = last
        headers = {
            "version": str(last.version),
            "first_timestamp": str(folded[0].timestamp_ms),
            "source": f"t.sow/0/{last.offset}",
            **({"conflated": str(len(folded))} if len(folded) > 1 else {}),
            **({"kind": "delete"} if last.value is None else {"kind": "insert"} if before is None else {}),
            **header_texts,
        }
        place = self._offset, now_ms + 20, now_ms + 25.0
        self._offset += 1
        self.sow[key].append(Delivery(*place, last.value, headers))
        headers = headers | {"delta_base": str(before.version if before else 0)}
        delta, removed = _moved(json.loads(before.value or b"") if before else {}, json.loads(last.value or b"{}"))
        if before is not None and last.value is not None:
            delta |= _touched([json.loads(update.value or b"{}") for update in (before, *folded)])
        if last.value is not None and removed:
            headers["removed"] = json.dumps(removed)
        self.delta[key].append(Delivery(*place, json.dumps(delta).encode(), headers))


def _touched(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The members that differed at some time in the interval, with their final values."""
    return {
        name: value
        for name, value in states[-1].items()
        if any(state.get(name) != states[0].get(name) for state in states)
    }


def _moved(old: dict[str, Any], new: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The changed members, and pointers to the removed ones."""
    changed = {name: value for name, value in new.items() if old.get(name) != value}
    removed = [f"/{name}" for name in old if name not in new]
    for name, value in changed.items():
        if isinstance(value, dict) and isinstance(old.get(name), dict):
            removed += [f"/{name}/{member}" for member in old[name] if member not in value]
    return changed, removed
