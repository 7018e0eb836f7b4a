"""A share group with one member, without Kafka: a verified fake of `ShareReader`, by the tests of the contract."""

from __future__ import annotations

from collections.abc import Iterable

from processor.queues.transport.leases import Lease, Verdict
from processor.record import Record


class FakeLeases:
    """Leases records of one partition, in order; released ones come again."""

    def __init__(self, values: Iterable[bytes] = ()) -> None:
        self.now_s = 0.0
        """The time of the clock."""
        self.sent: list[dict[int, Verdict]] = []
        """The outcomes of each message to the broker, by offset."""
        self.asked: list[int] = []
        """The most records of each poll."""
        self.is_closed = False
        self.partitions = frozenset((0,))
        """The partitions that it reads."""
        self._records = [Record(b"k", value, [("version", b"1")], at, 0) for at, value in enumerate(values)]
        self._deliveries = dict.fromkeys(range(len(self._records)), 0)
        self._free = list(self._deliveries)
        self._held: set[int] = set()
        self._decided: dict[int, Verdict] = {}

    def append(self, value: bytes, deliveries: int = 0) -> None:
        """Append a record, which was delivered so often before."""
        offset = len(self._records)
        self._records.append(Record(b"k", value, [("version", b"1")], offset, 0))
        self._deliveries[offset] = deliveries
        self._free.append(offset)

    def poll(self, timeout_s: float, leases_max: int) -> list[Lease]:
        """Send outcomes, and lease the next records."""
        self._send()
        self.asked.append(leases_max)
        free = max(0, leases_max - len(self._held))
        taken, self._free = self._free[:free], self._free[free:]
        self._held |= set(taken)
        for offset in taken:
            self._deliveries[offset] += 1
        return [Lease(0, self._records[offset], self._deliveries[offset], self.now_s) for offset in taken]

    def settle(self, lease: Lease, verdict: Verdict) -> None:
        """Decide about a record that is held."""
        assert lease.record.offset in self._held
        self._decided[lease.record.offset] = verdict

    def drop(self, lease: Lease) -> None:
        """Forget a record: its lease has ended, so it is free again."""
        self._held.discard(lease.record.offset)
        self._free = sorted([*self._free, lease.record.offset])

    def _send(self) -> None:
        if self._decided:
            self.sent.append(self._decided)
        for offset, verdict in self._decided.items():
            self._held.discard(offset)
            if verdict == "release":
                self._free.append(offset)
        self._free.sort()
        self._decided = {}

    def close(self) -> None:
        """Send the outcomes; the records that are held are free."""
        self._send()
        self._free += sorted(self._held)
        self._held.clear()
        self.is_closed = True

    @property
    def verdicts(self) -> dict[int, Verdict]:
        """The last outcome of each record."""
        return {offset: verdict for sent in [*self.sent, self._decided] for offset, verdict in sent.items()}


class Letters:
    """Keeps dead letters."""

    def __init__(self) -> None:
        self.written: list[tuple[int, str, str]] = []
        """Offset, reason and detail of each."""

    def write(self, lease: Lease, reason: str, detail: str) -> None:
        """Keep one."""
        self.written.append((lease.record.offset, reason, detail))
