"""The leases of a member and their outcomes, from the fetch to the broker's answer. Not safe for threads by itself."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from processor.kafka.share_member.lease import Lease, Place, Verdict

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
