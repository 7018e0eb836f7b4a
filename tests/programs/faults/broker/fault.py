"""What a proxy can do to Kafka's requests and answers, one API at a time."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field


class Api(enum.IntEnum):
    """Kafka's number for the requests that a transaction is made of, and for the questions of a restore."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


class Way(enum.Enum):
    """Where a frame travels."""

    REQUEST = "request"
    ANSWER = "answer"


class Act(enum.Enum):
    """What happens to a frame."""

    DELAY = "it, and all behind it on its connection, arrives later"
    LOSE = "it never arrives; the connection stays"
    RESET = "it never arrives, and the connection ends with a reset"
    LATE = "the client sees a reset at once, but the broker gets the request, later"


@dataclass(slots=True, eq=False)
class Fault:
    """One kind of frame, and what becomes of the next few of it."""

    api: Api | None
    """Which requests or answers; None: all."""
    way: Way
    """On which way."""
    act: Act
    """What becomes of them."""
    delay_s: float = 0.0
    """How much later, for those that arrive later."""
    times: int = 1
    """How many of them."""
    met: int = 0
    """How many it has been done to."""
    done: threading.Event = field(default_factory=threading.Event)
    """Set when it has been done so many times."""

    def takes(self, api: int | None, way: Way) -> bool:
        """Whether this frame is one of them; it is counted then."""
        if self.met >= self.times or way is not self.way or (self.api is not None and api != self.api):
            return False
        self.met += 1
        if self.met == self.times:
            self.done.set()
        return True
