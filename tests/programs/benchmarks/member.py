"""An idle group member: `python -m tests.programs.benchmarks.member BOOTSTRAP GROUP TOPIC PROTOCOL`."""

from __future__ import annotations

import os
import sys

from processor.kafka.clients.group_consumer import GroupConsumer


class Nothing:
    """A listener that ignores assignments and revocations."""

    def on_assigned(self, partitions: list[int]) -> None:
        """Ignore an assignment."""

    def on_revoked(self, partitions: list[int]) -> None:
        """Ignore a revocation."""

    def on_lost(self, partitions: list[int]) -> None:
        """Ignore a loss of partitions."""


def main() -> None:
    """Be a group member for as long as the parent lives, and print the member id once."""
    bootstrap, group, topic, protocol = sys.argv[1:]
    kafka = {"bootstrap.servers": bootstrap, "group.protocol": protocol}
    consumer = GroupConsumer(kafka, group=group, topic=topic, session_timeout_s=4, listener=Nothing())
    parent = os.getppid()
    member = ""
    while os.getppid() == parent:
        consumer.poll(1, 0.1)
        if not member and (member := consumer.member_id()):
            print(member, flush=True)


if __name__ == "__main__":
    main()
