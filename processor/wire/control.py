"""The records of the control topic, and the only place that knows how they are written: JSON with a format number.

========================================================  ============================================================
key                                                       value
========================================================  ============================================================
`held/<application_id>/<pipeline>/<partition>`            `Notice`, by the worker that has the partition; nothing once
                                                          the partition goes on
`failed/<application_id>/<pipeline>/<host>-<dir>-<slot>`  `Failure`, by the process whose pipeline has failed; nothing
                                                          once it runs
`resume/<application_id>/<pipeline>/<partition or *>`     `Order`, by an operator
`fence/<application_id>/<pipeline>/*`                      `Fence`, by the commands that move a merge, or a topic
========================================================  ============================================================

A fence that is up is also a mark in each partition of the pipeline's mark topic, written in the same transaction. A
worker restores its marks before it merges, so it heeds the fence also where it cannot read the control topic.
"""

from __future__ import annotations

import json
import time
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

FORMAT: Final = 1
"""The format that this version writes, and the newest that it reads.

A reader ignores fields that it does not know. So the number grows only where a reader that ignores a new field would do
something wrong.
"""
ALL_PARTITIONS: Final = "*"
"""The place of an order for all partitions that are held, and of a fence."""
WORKERS: Final = "workers"
"""The phase of a `Fence` in which the workers merge the topic."""
SPARK: Final = "spark"
"""The phase in which Spark merges it."""
BACKFILL: Final = "backfill"
"""The workers are to leave, and a history is merged; nothing else has changed."""
REPLACING: Final = "replacing"
"""The records of the SOW topic are being replaced by a backfill."""
RESHARDING: Final = "resharding"
"""The workers are to leave, and the records of the SOW topic are copied to the topic that takes its place."""
MOVED: Final = "moved"
"""Another topic has taken its place: workers forward its input there, and merge nothing."""
OF_SPARK: Final = "@spark"
"""The end of the application id of input positions while Spark merges, or hands records over; no settings can have one
with an `@`."""
_MESSAGE_MAX: Final = 4_000
"""Characters of a message; a longer one is cut."""

Kind: TypeAlias = Literal["held", "failed", "resume", "fence"]
"""The kind of a record."""

_KINDS: Final = frozenset(get_args(Kind))


class Key(NamedTuple):
    """The key of a record."""

    kind: Kind
    """The kind of the record."""
    application_id: str
    """Whose."""
    pipeline: str
    """The pipeline's name."""
    place: str
    """A partition number, `*`, or the name of a process."""

    def encode(self) -> bytes:
        """Encode it for Kafka."""
        return "/".join(self).encode()


def decode_key(data: bytes | None) -> Key | None:
    """The key of a record; None for one that this version does not know."""
    parts = (data or b"").decode(errors="replace").split("/")
    if len(parts) != len(Key._fields) or parts[0] not in _KINDS:
        return None
    return Key(cast("Kind", parts[0]), *parts[1:])


class _Entry(BaseModel):
    """The fields of every record."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    at_ms: int
    """Time of writing, milliseconds since the epoch."""

    def encode(self) -> bytes:
        """Encode it for Kafka."""
        members = self.model_dump(exclude=self._absent())
        return json.dumps({"format": FORMAT, **members}, separators=(",", ":")).encode()

    def _absent(self) -> set[str]:
        """The fields that are not written."""
        return set()


class _OfProcess(_Entry):
    """The fields of the records that workers write."""

    message: str
    """The problem, and the advice to solve it."""
    host: str
    """The host's name."""
    pid: int
    """The process."""
    version: str
    """Of Sowstream."""


class Notice(_OfProcess):
    """A worker's notice that a partition is held; written again with each try."""

    reason: str
    """One of `HoldReason`, or one that a newer version knows."""
    offset: int
    """The input offset it stands at; -1: not known."""
    since_ms: int
    """Time at which it was held first, milliseconds since the epoch."""
    tries: int
    """Number of retries since."""
    next_try_ms: int
    """Time of the next retry, milliseconds since the epoch."""
    order_ms: int | None = None
    """`at_ms` of the last order by which it was retried; 0: there was none. None: by a version that did not say."""


class Failure(_OfProcess):
    """A worker's notice that a pipeline has failed; written again with each try."""


class Order(_Entry):
    """An operator's order; see `Resume`."""

    partition: int | None
    """The partition; None: all that are held."""
    skip_until: int | None
    """The last input offset to be skipped; None: nothing is skipped."""
    by: str
    """Who gave it: `user@host`."""


class Fence(_Entry):
    """The engine that merges a topic; without this record its workers do.

    Written by `spark_integration.merge.moves`, and by `repair.reshard` of a topic that moves to another one.
    """

    phase: str
    """`workers`, or the phase of a move, in which no worker merges; a newer version may know more of them."""
    number: int
    """The number of the move to Spark, from 1."""
    checkpoint: str = ""
    """The checkpoint location of Spark's query."""
    topic_id: str = ""
    """Kafka's id of the input topic; empty until the workers are gone."""
    offsets: dict[int, int] = {}
    """The next input offset of each partition when the phase began; empty until the workers are gone. In the phase
    `replacing`: the workers' offsets after it, of a topic that was empty; of any other one none.
    """
    has_begun: bool = False
    """True if Spark may have merged since the move began."""
    by: str = ""
    """The user: `user@host`."""
    moved_to: str = ""
    """The topic that takes its place, in the phases `resharding` and `moved`."""
    waiting: list[int] = []
    """In the phase `moved`: the partitions by which the input has grown, as long as they must not be forwarded: the
    others may have earlier records of the same keys.
    """

    def _absent(self) -> set[str]:
        """The fields of a topic that moves, for all others: they were added later, and the bytes stay as they were."""
        return set() if self.moved_to else {"moved_to", "waiting"}

    @property
    def is_up(self) -> bool:
        """True if workers must not merge the topic."""
        return self.phase != WORKERS

    @property
    def label(self) -> str:
        """The owner of the topic's partitions in a table: `Spark`, or the phase of a move or a backfill."""
        if self.phase == MOVED:
            return f"moved to {self.moved_to}"
        return "Spark" if self.phase == SPARK else f"fence: {self.phase}"

    def sentence(self, topic: str) -> str:
        """The engine that merges a topic, and the command that changes it."""
        since = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(self.at_ms / 1000))
        seen = f"since {since}, by {self.by}"
        if self.phase == WORKERS:
            return "its workers merge it"
        if self.phase == SPARK:
            return (
                f"Spark merges it ({seen}); `sowstream-spark merge {topic}` goes on with that, and `sowstream-spark "
                f"handback {topic}` moves the merge back to the workers"
            )
        if self.phase in (BACKFILL, REPLACING):
            return (
                f"a backfill changes its records (phase {self.phase}, {seen}), and nobody merges it; let the backfill "
                "end, or run it again if it has died"
            )
        if self.phase == MOVED:
            return f"{self.moved_to} has taken its place ({seen}), and its workers forward its input there"
        if self.phase == RESHARDING:
            return (
                f"its records are being copied to {self.moved_to} ({seen}), and no worker merges it; let `sowstream "
                f"reshard {topic}` end, or run it again if it has died"
            )
        return (
            f"its merge is being moved (phase {self.phase}, {seen}); let the command end, or run it again if it has "
            f"died; `sowstream-spark handback {topic}` moves the merge to the workers"
        )


Entry = TypeVar("Entry", Notice, Failure, Order, Fence)


def decode(kind: type[Entry], data: bytes) -> Entry | None:
    """A record's value; None for one of a newer format, and for one that is not ours."""
    try:
        tree = json.loads(data)
        if not isinstance(tree, dict) or not 1 <= tree.get("format", 0) <= FORMAT:
            return None
        return kind.model_validate(tree)
    except (ValueError, TypeError, ValidationError):
        return None


def shortened(message: str) -> str:
    """A message that fits a record with ease."""
    return message if len(message) <= _MESSAGE_MAX else f"{message[:_MESSAGE_MAX]} …"
