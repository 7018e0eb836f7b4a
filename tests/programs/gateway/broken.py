"""The broker is killed, and the SOW topic is created again, under many clients of a gateway: all are whole again.

A real Kafka, a real `sowstream gateway` process, and clients in this process, as in `killed`. After each fault every
client must hold the records of the topic; the seconds until then are printed::

    python -m tests.programs.gateway.broken --clients 1000
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import yaml

from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.trial.broker import EmbeddedBroker
from processor.trial.broker.server import free_port
from tests.endtoend.world import World
from tests.gateway.running import SowWriter
from tests.programs.gateway.killed import KEYS, Follower, is_ready, started

PATIENCE_S = 180.0


class Fault:
    """A gateway with clients, and the records that they should hold."""

    def __init__(self, world: World, clients: int, port: int) -> None:
        self.world = world
        self.writer = SowWriter(world)
        self.rng = random.Random(1)
        self.address = f"127.0.0.1:{port}"
        self.followers = [Follower(self.address, world.name, number) for number in range(clients)]

    def write(self, count: int) -> None:
        """Write so many records."""
        for _ in range(count):
            self.writer.put(self.rng.randrange(KEYS), group=self.rng.randrange(5), n=self.rng.randrange(10**6))

    def wrong(self) -> int:
        """The number of clients that do not hold the records of the topic."""
        groups = [
            {key: value for key, value in self.writer.records.items() if value["group"] == group} for group in range(5)
        ]
        return sum(
            {key: record for key, (record, _) in follower.records.items()} != groups[number % 5]
            for number, follower in enumerate(self.followers)
        )

    async def whole(self, fault: str, began_s: float) -> None:
        """Wait until all clients hold the records of the topic, and print how long that took."""
        while (wrong := self.wrong()) and time.monotonic() - began_s < PATIENCE_S:  # noqa: ASYNC110 - A state of others.
            await asyncio.sleep(0.1)
        snapshots = sum(follower.snapshots for follower in self.followers)
        repeated = sum(follower.repeated for follower in self.followers)
        print(
            f"{fault:<22} {len(self.followers) - wrong:,} of {len(self.followers):,} clients whole again in "
            f"{time.monotonic() - began_s:.1f} s, {snapshots:,} snapshots so far, {repeated:,} repeated updates",
            flush=True,
        )
        assert not wrong
        assert not repeated


def kill(broker: EmbeddedBroker) -> None:
    """Kill the broker and its guard (SIGKILL)."""
    guard, broker._guard = broker._guard, None
    assert guard is not None
    with suppress(ProcessLookupError):
        os.killpg(guard.pid, signal.SIGKILL)
    guard.wait()


async def run(fault: Fault, broker: EmbeddedBroker) -> None:
    """Run both faults."""
    world = fault.world
    await asyncio.to_thread(fault.write, KEYS * 2)
    gateway = started(world, fault.address)
    tasks = []
    try:
        while not await asyncio.to_thread(is_ready, fault.address):  # noqa: ASYNC110 - A state of others.
            await asyncio.sleep(0.1)
        tasks = [asyncio.create_task(follower.follow()) for follower in fault.followers]
        await fault.whole("connected", time.monotonic())

        await asyncio.to_thread(kill, broker)
        await asyncio.sleep(3)  # The time without a broker is part of the fault.
        down_s = time.monotonic()
        await asyncio.to_thread(broker.start)
        print(f"{'broker':<22} killed, up again after {time.monotonic() - down_s + 3:.1f} s", flush=True)
        up_s = time.monotonic()
        await asyncio.to_thread(fault.write, 30)
        await fault.whole("broker killed", up_s)

        began_s = time.monotonic()
        admin = Admin(world.config.kafka)
        sow = [one for one in specs(world.config) if one.name == world.config.kafka_names.topic(world.name, "sow")]
        await asyncio.to_thread(admin.delete, [one.name for one in sow])
        await asyncio.to_thread(_created, admin, sow)
        fault.writer.versions.clear()
        fault.writer.records.clear()
        await asyncio.to_thread(fault.write, KEYS)
        await fault.whole("SOW topic made anew", began_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gateway.terminate()
        code = await asyncio.to_thread(gateway.wait)
    print(f"the gateway ended with exit code {code}")
    assert code == 0


def _created(admin: Admin, sow: list[object]) -> None:
    """Create the topic; Kafka needs a moment to delete the old one."""
    until_s = time.monotonic() + 30
    while True:
        try:
            admin.create(sow)  # type: ignore[arg-type]
        except Exception:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.2)
        else:
            return


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--port", type=int, default=18_981)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sowstream-gateway-") as directory:
        broker = EmbeddedBroker(Path(directory) / "broker", free_port())
        broker.start()
        try:
            world = World(broker.bootstrap, Path(directory), f"gb{random.randrange(10**6)}")
            tree = yaml.safe_load(world.file.read_text())
            world.file.write_text(yaml.safe_dump(tree | {"gateway": {"topics": [world.name]}}))
            asyncio.run(run(Fault(world, arguments.clients, arguments.port), broker))
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
