"""Measures how often the successor of a killed member is the predicted one, on a real broker."""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from processor.kafka.admin.admin import Admin
from processor.runtime.recovery.assignment_forecast import successors
from processor.topics.family import TopicSpec
from tests.programs.benchmarks.throughput import broker, print_progress

if TYPE_CHECKING:
    from processor.kafka.admin.groups import ConsumerGroup

TIMEOUT_S = 60.0


class Hits(NamedTuple):
    """The number of partitions of killed members that went to the predicted member."""

    first: int
    """Number after the first death."""
    second: int
    """Number after the death of the successor too."""
    first_of: int
    second_of: int


def main() -> None:
    """Run the rounds for both group protocols, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="first deaths; each is followed by that of a successor")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--protocol", choices=["classic", "consumer", "both"], default="both")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    arguments = parser.parse_args()
    protocols = ["classic", "consumer"] if arguments.protocol == "both" else [arguments.protocol]
    with broker(arguments.bootstrap) as bootstrap:
        print_progress("| group.protocol | assignor | the owner dies | its successor dies too |")
        print_progress("|---|---|---|---|")
        for protocol in protocols:
            crowd = Crowd(bootstrap, protocol, arguments.partitions)
            with contextlib.closing(crowd):
                assignor, hits = rounds(crowd, arguments.members, arguments.kills, random.Random(arguments.seed))
            print_progress(
                f"| {protocol} | {assignor} | {hits.first} of {hits.first_of} | {hits.second} of {hits.second_of} |"
            )


class Crowd:
    """The members of one group, each a process."""

    def __init__(self, bootstrap: str, protocol: str, partitions: int) -> None:
        self._bootstrap, self._protocol, self._partitions = bootstrap, protocol, partitions
        self._group = self._topic = f"prediction{uuid.uuid4().hex[:8]}"
        self._admin = Admin({"bootstrap.servers": bootstrap})
        self._admin.create([TopicSpec(self._topic, "delta", partitions, {})])
        self._processes: dict[str, subprocess.Popen[str]] = {}
        if protocol == "consumer":
            self._be_quick()

    def join(self, count: int) -> None:
        """Start more members."""
        command = [sys.executable, "-m", "tests.programs.benchmarks.member", self._bootstrap, self._group, self._topic]
        processes = [
            subprocess.Popen([*command, self._protocol], stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        for process in processes:
            assert process.stdout is not None
            self._processes[process.stdout.readline().strip()] = process

    def kill(self, member: str) -> None:
        """Kill a member with SIGKILL."""
        process = self._processes.pop(member)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def settled(self) -> ConsumerGroup:
        """The group, once exactly the living members have all partitions."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            group = self._admin.ask_group(self._group, self._topic, 5.0).result()
            everything = sum(map(len, group.assigned.values())) == self._partitions
            if group.state == "stable" and everything and group.assigned.keys() == self._processes.keys():
                return group
            time.sleep(0.1)
        raise SystemExit("the group does not settle")

    def close(self) -> None:
        """Kill all members."""
        for member in list(self._processes):
            self.kill(member)
        self._admin.delete([self._topic])

    def _be_quick(self) -> None:
        """Shorten the session timeout, which the broker sets in the newer protocol."""
        wanted = {"consumer.session.timeout.ms": "4000", "consumer.heartbeat.interval.ms": "500"}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, self._group, incremental_configs=entries)
        client = AdminClient({"bootstrap.servers": self._bootstrap})
        client.incremental_alter_configs([resource])[resource].result()


def rounds(crowd: Crowd, members: int, kills: int, rng: random.Random) -> tuple[str, Hits]:
    """Kill an owner and then its successor, several times."""
    crowd.join(members)
    hits = Hits(0, 0, 0, 0)
    assignor = ""
    for _ in range(kills):
        before = crowd.settled()
        assignor = before.assignor
        predicted = successors(before.assigned, assignor, 2)
        dead = rng.choice(sorted(before.assigned))
        crowd.kill(dead)
        after = crowd.settled()
        orphans = before.assigned[dead]
        first = sum(partition in after.assigned[predicted[partition][0]] for partition in orphans)
        successor = next(member for member, partitions in sorted(after.assigned.items()) if partitions & orphans)
        crowd.kill(successor)
        last = crowd.settled()
        twice = [p for p in orphans if p in after.assigned[successor] and predicted[p][0] == successor]
        second = sum(partition in last.assigned[predicted[partition][1]] for partition in twice)
        if first < len(orphans):
            print_progress(f"missed: {before.assigned} without {dead} is {after.assigned}")
        hits = Hits(*map(sum, zip(hits, (first, second, len(orphans), len(twice)), strict=True)))
        crowd.join(2)
    return assignor, hits


if __name__ == "__main__":
    main()
