"""Membership in a consumer group as proof of life: Kafka removes a dead process after its session timeout."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

from processor.errors import BrokerUnavailable, ConfigurationError, SowstreamError
from processor.installation.hold import who
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.group_consumer import GroupConsumer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from processor.kafka.admin.groups import Member

log = structlog.stdlib.get_logger("sowstream.cutover")

SESSION_TIMEOUT_S: Final = 10.0
"""Time until a dead process has left its group."""
_JOIN_TIMEOUT_S: Final = 60.0
_ASK_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.2
_LOOK_S: Final = 0.3
_RETRY_S: Final = 1.0


class Presence:
    """A membership that lasts as long as this process lives, on a thread of its own; leave its `with` to end it."""

    def __init__(
        self, kafka: Mapping[str, str], *, group: str, topic: str, role: str, session_timeout_s: float
    ) -> None:
        """Set up without connecting.

        Args:
            kafka: librdkafka properties.
            group: the consumer group.
            topic: a topic that exists and may be read; no record of it is read.
            role: the name of the command, for the messages of others.
            session_timeout_s: time until the group removes a dead process.
        """
        self._kafka = {"client.id": f"{role} by {who()} (process {os.getpid()})"} | dict(kafka)
        self._group, self._topic, self._session_timeout_s = group, topic, session_timeout_s
        self._admin = Admin(kafka)
        self._stopping = threading.Event()
        self._member_id = ""
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def __enter__(self) -> Self:
        """Join the group, and wait until Kafka lists this process.

        Raises:
            Stop: Kafka refuses, or does not answer.
        """
        self._thread.start()
        deadline_s = time.monotonic() + _JOIN_TIMEOUT_S
        while not self._member_id or self._member_id not in {one.member_id for one in self._members()}:
            if time.monotonic() > deadline_s:
                self.close()
                raise BrokerUnavailable(f"joining the group {self._group}: no answer in {_JOIN_TIMEOUT_S:g} s")
            time.sleep(_LOOK_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def refuse_others(self, why: str) -> None:
        """Make sure that no other living process is in the group; a dead one is waited for.

        Raises:
            ConfigurationError: another one lives.
        """
        deadline_s = time.monotonic() + 1.5 * self._session_timeout_s + 2.0
        while others := [one for one in self._members() if one.member_id != self._member_id]:
            if time.monotonic() > deadline_s:
                raise ConfigurationError(f"{others[0]} {why}")
            time.sleep(_LOOK_S)

    def _members(self) -> tuple[Member, ...]:
        return members(self._admin, self._group, self._topic)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._stay()
            except SowstreamError as error:
                log.warning("membership is lost; joining again", group=self._group, why=str(error))
                self._stopping.wait(_RETRY_S)

    def _stay(self) -> None:
        consumer = GroupConsumer(
            self._kafka,
            group=self._group,
            topic=self._topic,
            session_timeout_s=self._session_timeout_s,
            listener=_Idle(),
        )
        try:
            while not self._stopping.is_set():
                consumer.poll(1, _POLL_S)
                self._member_id = consumer.member_id()
        finally:
            consumer.close()


class _Idle:
    """A listener that reads nothing."""

    def on_assigned(self, partitions: list[int]) -> None:
        """Read nothing."""

    def on_revoked(self, partitions: list[int]) -> None:
        """There is nothing to commit."""

    def on_lost(self, partitions: list[int]) -> None:
        """There is nothing to abort."""


def members(admin: Admin, group: str, topic: str) -> tuple[Member, ...]:
    """The members of a group.

    Raises:
        Stop: Kafka refuses, or does not answer.
    """
    return admin.ask_group(group, topic, _ASK_TIMEOUT_S).answer().members
