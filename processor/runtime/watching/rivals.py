"""Finds installations that share a consumer group by mistake, as in two namespaces or clusters with the same names.

A worker's client id is the name of its slot: host, checksum of the state directory, number, and the slot's own UUID. On
one host a directory's slot belongs to one process. So two members that differ only in the UUID are workers of
two installations with equal host names, such as pods of one release name in two namespaces. Workers on hosts of other
names look like workers that were added on purpose, and are not reported.

A worker that was killed and has lost its directory returns with a new UUID, while the group still waits for the old
one: so a pair counts only if it outlasts the session timeout.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from processor.errors import Stop

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.descriptions import ConsumerGroup

log = structlog.stdlib.get_logger("sowstream.group")

INTERVAL_S: Final = 60.0
"""Least time between two looks."""
_ASK_TIMEOUT_S: Final = 10.0
_NAME: Final = re.compile(r"(.+-[0-9a-f]{8}-[0-9]+)-([0-9a-f]{32})")
"""The name of a slot: its place, and its UUID."""


class WorkerMember(NamedTuple):
    """A worker in a group."""

    client_id: str
    """The name of its slot, unless the settings override it."""
    host: str
    """Its address."""


def members_of(group: ConsumerGroup) -> list[WorkerMember]:
    """List the members of a group, sorted."""
    return sorted(WorkerMember(one.client_id, one.host) for one in group.members)


def rivals(group_members: Iterable[WorkerMember]) -> dict[str, list[WorkerMember]]:
    """Group the members that have one place and several UUIDs, by place."""
    by_place: defaultdict[str, dict[str, WorkerMember]] = defaultdict(dict)
    for member in group_members:
        if (name := _NAME.fullmatch(member.client_id)) is not None:
            by_place[name[1]][name[2]] = member
    return {place: list(of_place.values()) for place, of_place in by_place.items() if len(of_place) > 1}


def ask_members(admin: Admin, group: str, topic: str, timeout_s: float = _ASK_TIMEOUT_S) -> list[WorkerMember]:
    """Ask for the members of a group.

    Raises:
        Stop: Kafka refuses, or does not answer.
    """
    return members_of(admin.ask_group(group, topic, timeout_s).wait())


class RivalWatch:
    """Checks periodically the members of a process' groups, on a thread and a connection of its own."""

    def __init__(
        self,
        admin: Admin,
        groups: Sequence[tuple[str, str]],
        *,
        stop: threading.Event,
        session_timeout_s: float,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Create a watch; it sends no request before `start`.

        Args:
            admin: a connection of its own.
            groups: each consumer group with its input topic.
            stop: ends it.
            session_timeout_s: how long a group waits for a dead member.
            interval_s: least time between two looks.
        """
        self._admin = admin
        self._groups = groups
        self._stop = stop
        # Within this time a dead member leaves the group.
        self._pause_s = max(interval_s, 1.5 * session_timeout_s)
        self._suspects: dict[tuple[str, str], list[WorkerMember]] = {}
        self._reported: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="group watch", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            for group, topic in self._groups:
                try:
                    self.look(group, ask_members(self._admin, group, topic))
                except Stop as error:
                    log.debug("group not looked at", group=group, why=str(error))

    def look(self, group: str, group_members: Iterable[WorkerMember]) -> None:
        """Compare the members with those of the look before; a pair that was in both is logged, once."""
        now = {(group, place): pair for place, pair in rivals(group_members).items()}
        for key, pair in now.items():
            if self._suspects.get(key) == pair and key not in self._reported:
                self._reported.add(key)
                log.warning(
                    "two installations share a consumer group: each gets a part of the partitions. Give one of them "
                    "another application_id, and topics of its own, or stop it",
                    group=group,
                    members=[f"{member.client_id} at {member.host}" for member in pair],
                )
        self._suspects = {key: pair for key, pair in self._suspects.items() if key[0] != group} | now


def log_fencing_member(admin: Admin, group: str, topic: str, own: str) -> None:
    """Log the other members of a fenced worker's group, on a thread of its own, if Kafka answers."""

    def look() -> None:
        try:
            group_members = ask_members(admin, group, topic)
        except Stop as error:
            log.warning("fenced; who did it is not known", group=group, why=str(error))
            return
        others = [f"{member.client_id} at {member.host}" for member in group_members if member.client_id != own]
        same = [f"{member.client_id} at {member.host}" for member in group_members if member.client_id == own]
        if len(same) > 1:
            log.error("fenced: another process has the same identity, as of a copied state_dir", members=same)
        else:
            log.warning("fenced: a process with the same transactional id has started", group=group, others=others)

    threading.Thread(target=look, name="who fenced", daemon=True).start()
