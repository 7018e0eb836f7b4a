"""A broker that answers the requests of a `LeaderReader` as a test says, in place of connections to a real one."""

from __future__ import annotations

import asyncio
import threading
import uuid
from types import SimpleNamespace
from typing import Any

from processor.errors import Stop
from processor.queues.transport.leader_reader import LeaderReader
from processor.queues.transport.leases import FetchGrant, Lease, LeaseBook

NODE, TOPIC = 1, uuid.UUID(int=1)


class _Idle(BaseException):
    """The reader has nothing to do."""


def part(number: int, *, records: bytes = b"", leased: tuple[tuple[int, int], ...] = (), **errors: Any) -> Any:
    """One partition of an answer, with runs of leased offsets; `errors` are its codes and messages."""
    fields: dict[str, Any] = dict.fromkeys(("error_code", "acknowledge_error_code"), 0)
    fields |= dict.fromkeys(("error_message", "acknowledge_error_message")) | errors
    runs = [SimpleNamespace(first_offset=first, last_offset=last, delivery_count=1) for first, last in leased]
    return SimpleNamespace(partition_index=number, records=records, acquired_records=runs, **fields)


def answer(*parts: Any, error_code: int = 0) -> Any:
    """An answer to a fetch or an acknowledgement."""
    return SimpleNamespace(error_code=error_code, error_message=None, responses=[SimpleNamespace(partitions=parts)])


class FakeBroker:
    """The network of a reader with one broker, and the member that the reader belongs to."""

    def __init__(self) -> None:
        self.group, self.member_id, self.topic = "g", "m", "t"
        self.book, self.lock = LeaseBook(), threading.Condition()
        self.answers: list[Any] = []
        """The next answers; an exception is a broken connection."""
        self.requests: list[Any] = []
        """The requests that came."""
        self.pauses_s: list[float] = []
        """The pauses of the reader."""
        self.waits_s: list[float | None] = []
        """For how long at most the reader had nothing to do, each time."""
        self.refreshes = 0
        """How often the leaders were asked for."""
        self.failure: Stop | None = None
        """The reason why the queue cannot be read on."""
        self.link: object = object()
        """The connection; another object is another connection."""
        self.fetches = 0
        """Number of fetches that the reader may send."""
        self.reader = LeaderReader(NODE, self, self)  # type: ignore[arg-type]
        self.reader.topic_id, self.reader.partitions = TOPIC, frozenset((0, 1))

    def run(self, *answers: Any) -> None:
        """Let the reader fetch once for each answer, until it has nothing to do."""
        self.answers += answers
        self.fetches = len(answers)
        try:
            asyncio.run(self.reader.run())
        except _Idle:
            assert not self.answers

    def epochs(self) -> list[int]:
        """The session epochs of the requests since the last call."""
        epochs = [request.share_session_epoch for request in self.requests]
        self.requests.clear()
        return epochs

    def take(self) -> list[Lease]:
        """The leases that came."""
        return self.book.take(100)

    def grant(self, node: int) -> FetchGrant | None:
        """A fetch, while there are some."""
        if not self.fetches or self.failure is not None:
            return None
        self.fetches -= 1
        return FetchGrant(10, 250)

    def returned(self, node: int, leases: list[Lease]) -> None:
        """A fetch has ended."""
        self.book.add(node, leases)

    def fail(self, error: Stop) -> None:
        """The queue cannot be read on."""
        self.failure = error

    def notifier(self) -> Any:
        """What the reader waits for when it has nothing to do."""

        async def wait(seconds: float | None) -> None:
            self.waits_s.append(seconds)
            raise _Idle

        wait.notify = lambda: None  # type: ignore[attr-defined]
        return wait

    async def sleep(self, seconds: float) -> None:
        """Note a pause."""
        self.pauses_s.append(seconds)

    async def connection(self, node: int) -> object:
        """The connection."""
        return self.link

    async def send(self, connection: object, request: Any) -> Any:
        """Note a request, and give the next answer; without one all is well."""
        self.requests.append(request)
        reply = self.answers.pop(0) if self.answers else answer()
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def refresh(self) -> None:
        """Note a question for the leaders."""
        self.refreshes += 1
