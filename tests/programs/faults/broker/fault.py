"""The faults that a proxy can inject into Kafka's requests and answers, one API at a time."""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass, field


class Api(enum.IntEnum):
    """Kafka's numbers of the requests of a transaction, and of the queries of a restore."""

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
    """The direction of a frame."""

    REQUEST = "request"
    ANSWER = "answer"


class Act(enum.Enum):
    """The fault that befalls a frame."""

    DELAY = "it, and all behind it on its connection, arrives later"
    LOSE = "it never arrives; the connection stays"
    RESET = "it never arrives, and the connection ends with a reset"
    LATE = "the client sees a reset at once, but the broker gets the request, later"


@dataclass(slots=True, eq=False)
class Fault:
    """One kind of frame, and the fault for the next few frames of this kind."""

    api: Api | None
    """The API of the requests or answers; None: all APIs."""
    way: Way
    """The direction of the frames."""
    act: Act
    """The fault that they suffer."""
    delay_s: float = 0.0
    """Delay, for frames that arrive late."""
    times: int = 1
    """Number of frames to affect."""
    met: int = 0
    """Number of frames affected so far."""
    done: threading.Event = field(default_factory=threading.Event)
    """Set when all the frames have been affected."""

    def takes(self, api: int | None, way: Way) -> bool:
        """Return whether the fault affects this frame, which is then counted."""
        if self.met >= self.times or way is not self.way or (self.api is not None and api != self.api):
            return False
        self.met += 1
        if self.met == self.times:
            self.done.set()
        return True
