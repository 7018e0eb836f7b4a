"""The leases of a member of a share group: each record with its outcome, and how many more each broker is asked for.

From the fetch to the broker's answer. Not safe for threads by itself.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from processor.record import Record


Verdict: TypeAlias = Literal["accept", "release", "reject"]
"""The outcome of a delivery: done; to be delivered again, to any member; never to be delivered again."""

Place: TypeAlias = tuple[int, int]
"""Partition number and offset of a record."""


class Lease(NamedTuple):
    """A record that this member holds."""

    partition: int
    """The partition of the queue topic."""
    record: Record
    """The record."""
    deliveries: int
    """Number of deliveries, this one included."""
    since_s: float
    """A time before Kafka leased it to us, by the monotonic clock."""

    @property
    def place(self) -> Place:
        """Its partition and offset."""
        return self.partition, self.record.offset


GAP: Final = 0
"""The outcome of an offset without a record."""
RENEW: Final = 4
"""The lease begins again; the record stays with us."""
_CODES: Final[dict[Verdict, int]] = {"accept": 1, "release": 2, "reject": 3}
_DONE: Final = frozenset((_CODES["accept"], _CODES["reject"]))
"""Outcomes whose loss matters: the record is delivered again, and should not be."""

Outcomes: TypeAlias = dict[int, dict[int, int]]
"""By partition and offset: the code of the outcome."""


class AckBatch(NamedTuple):
    """A run of offsets with one outcome."""

    first: int
    last: int
    code: int


class LostOutcomes(NamedTuple):
    """Outcomes that Kafka did not take."""

    places: list[Place]
    """Their records."""
    reason: str
    """The reason."""


class LeaseBook:
    """The leases of one member, by the broker that gave them.

        add            take             settle                outcomes_for              answered
    ----------> ready ------> held ----------------> decided --------------> on the way ----------> gone
                  |             |  drop: forgotten      |                        |  refused: lost
                  +-------------+-----------------------+------ end_session: lost or forgotten
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Records by fate: `leased`, `accept`, `release`, `reject`, `gap`, `lost`."""
        self.lost: list[LostOutcomes] = []
        """Lost outcomes that are to be reported."""
        self._ready: deque[Lease] = deque()
        self._held: dict[Place, tuple[Lease, int]] = {}
        self._decided: dict[int, Outcomes] = {}

    @property
    def held(self) -> int:
        """Number of leases without an outcome, those not taken yet included."""
        return len(self._held)

    @property
    def has_ready(self) -> bool:
        """Whether there are leases to take."""
        return bool(self._ready)

    def add(self, node: int, leases: Sequence[Lease]) -> None:
        """Add leases that a broker has given."""
        self._ready += leases
        self._held.update((lease.place, (lease, node)) for lease in leases)
        self.counts["leased"] += len(leases)

    def take(self, count_max: int) -> list[Lease]:
        """The next leases for the caller, oldest first."""
        return [self._ready.popleft() for _ in range(min(count_max, len(self._ready)))]

    def settle(self, lease: Lease, verdict: Verdict) -> bool:
        """Decide about a lease.

        Returns:
            False if it is not ours any more: its session has ended.
        """
        held = self._held.get(lease.place)
        if held is None or held[0] is not lease:
            self.counts["lost"] += verdict != "release"
            return verdict == "release"
        del self._held[lease.place]
        self._decide(held[1], lease.partition, lease.record.offset, _CODES[verdict])
        self.counts[verdict] += 1
        return True

    def drop(self, lease: Lease) -> None:
        """Forget a lease that has ended by its time: Kafka refuses an outcome, and needs none."""
        held = self._held.get(lease.place)
        if held is not None and held[0] is lease:
            del self._held[lease.place]

    def decide_runs(self, node: int, partition: int, runs: Iterable[tuple[int, int]], code: int) -> None:
        """Decide about runs of offsets that no caller sees."""
        for first, last in runs:
            for offset in range(first, last + 1):
                self._decide(node, partition, offset, code)
            self.counts["gap"] += last - first + 1

    def has_outcomes(self, node: int | None = None) -> bool:
        """Whether a broker is to be sent outcomes; None: any broker."""
        return bool(self._decided if node is None else self._decided.get(node))

    def outcomes_for(self, node: int) -> Outcomes:
        """Take the outcomes for a broker; the caller sends them."""
        return self._decided.pop(node, {})

    def refused(self, partition: int, outcomes: Mapping[int, int], reason: str) -> None:
        """A broker did not take the outcomes of a partition."""
        places = [(partition, offset) for offset, code in outcomes.items() if code in _DONE]
        if places:
            self.counts["lost"] += len(places)
            self.lost.append(LostOutcomes(places, reason))

    def end_session(self, node: int, reason: str, partition: int | None = None) -> None:
        """A broker has forgotten our leases: all of them, or those of one partition.

        Those that are still held are reported when they are settled.
        """
        decided = self._decided.get(node, {})
        for each in [partition] if partition is not None else list(decided):
            self.refused(each, decided.pop(each, {}), reason)
        if not decided:
            self._decided.pop(node, None)
        gone = {
            place for place, (_, its_node) in self._held.items() if its_node == node and partition in (None, place[0])
        }
        if gone:
            self._ready = deque(lease for lease in self._ready if lease.place not in gone)
            for place in gone:
                del self._held[place]

    def take_lost(self) -> list[LostOutcomes]:
        """The lost outcomes that are not reported yet."""
        lost, self.lost = self.lost, []
        return lost

    def _decide(self, node: int, partition: int, offset: int, code: int) -> None:
        self._decided.setdefault(node, {}).setdefault(partition, {})[offset] = code


def ack_batches(outcomes: Mapping[int, int]) -> list[AckBatch]:
    """The outcomes of a partition as runs, in order: brokers want them so."""
    batches: list[AckBatch] = []
    for offset in sorted(outcomes):
        code = outcomes[offset]
        if batches and batches[-1].last == offset - 1 and batches[-1].code == code:
            batches[-1] = batches[-1]._replace(last=offset)
        else:
            batches.append(AckBatch(offset, offset, code))
    return batches


_WAIT_MS: Final = 250
"""The longest wait of a fetch for its first record. A broker answers one request of a connection after the other, so
outcomes and the end of the member wait for as long."""
_WAIT_HELD_MS: Final = 50
"""The same while records are held, whose outcomes may come, or brokers take turns and none had a record at once."""
_PATIENCE_MIN_S: Final = 0.01


class FetchGrant(NamedTuple):
    """A fetch that one broker may be asked for."""

    records_max: int
    wait_ms: int


class Demand:
    """How many records each broker may be asked for. Not safe for threads by itself."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without a caller; `clock_s` is a clock that does not jump, in seconds."""
        self._records_max, self._clock_s = 0, clock_s
        self._until_s = -1.0
        self._granted: dict[int, int] = {}
        self._turns: list[int] = []
        self._asked: set[int] = set()

    def wait_for(self, seconds: float, records_max: int) -> None:
        """The caller waits for records, and holds so many at a time at most."""
        self._until_s, self._records_max = self._clock_s() + max(seconds, _PATIENCE_MIN_S), records_max

    def satisfied(self) -> None:
        """The caller has records, and waits no longer."""
        self._until_s = -1.0
        self._asked.clear()

    @property
    def is_waiting(self) -> bool:
        """Whether the caller waits."""
        return self._clock_s() < self._until_s

    def grant(self, node: int, nodes: Collection[int], held: int) -> FetchGrant | None:
        """A fetch from a broker; None: it has to wait for its turn, or for the caller.

        Args:
            node: the broker.
            nodes: all brokers that have partitions for us.
            held: number of records that are held.
        """
        free = self._records_max - held - sum(self._granted.values())
        if free <= 0 or node in self._granted or not self.is_waiting:
            return None
        self._turns = [one for one in self._turns if one in nodes] + [one for one in nodes if one not in self._turns]
        idle = [one for one in self._turns if one not in self._granted]
        if node not in idle[:free]:
            return None
        takes_turns = len(nodes) > self._records_max - held
        self._turns.remove(node)
        self._turns.append(node)
        self._granted[node] = max(1, free // len(idle))
        self._asked.add(node)
        if takes_turns and not self._asked.issuperset(nodes):
            return FetchGrant(self._granted[node], 0)  # A record may wait at the next one.
        return FetchGrant(self._granted[node], _WAIT_HELD_MS if held or takes_turns else _WAIT_MS)

    def returned(self, node: int) -> None:
        """The broker's fetch has ended; its records are held now."""
        self._granted.pop(node, None)
