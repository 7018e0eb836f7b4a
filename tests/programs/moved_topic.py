"""Starts a worker of a topic that has moved while Kafka is silent, or without the control topic: no update may be lost.

`python -m tests.programs.moved_topic` makes twenty starts, with silences of 1 to 30 seconds. In every other one
the control topic is gone: workers then know of the move from the marks of the topic alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from processor.kafka.admin.admin import Admin
from processor.topics.family import control_topic
from processor.wire.forwarding import RESERVED
from tests.endtoend.moving_world import MovingWorld
from tests.programs.faults.broker.broker import Broker
from tests.programs.faults.broker.proxy import Proxy

_SILENT_S: Final = (1.0, 30.0)
_COMMANDS: Final = 150


class Start(NamedTuple):
    """One start of a worker."""

    silent_s: float
    """Seconds for which Kafka answered nothing when the worker started."""
    has_control: bool
    """True if there was a control topic."""
    seconds: float
    """Seconds from the start until every command was merged in the new topic."""
    strays: int
    """Records that the worker wrote to the SOW topic that has moved, which must have none."""


class SilentKafka:
    """A topic that has moved, on a broker whose network can be stalled for workers."""

    def __init__(self, directory: Path) -> None:
        """Start the broker, and move the topic; call `close` at the end."""
        self._stack = ExitStack()
        broker = self._stack.enter_context(Broker(directory / "broker"))
        self.proxy = self._stack.enter_context(Proxy(broker.proxied_port, broker.target_port))
        self.world = MovingWorld(broker.bootstrap, directory, "desk")
        self._stack.callback(self.world.close)
        world = self.world
        worker = world.start()
        world.feed(1, _COMMANDS)
        world.settle()
        assert world.reshard("--yes") == 0
        world.wait(world.is_right, "merging in the new topic")
        assert worker.stop() == 0
        # Workers reach the broker through the proxy, this process directly.
        tree = yaml.safe_load(world.file.read_text())
        tree["kafka"]["bootstrap.servers"] = broker.proxied_bootstrap
        world.file.write_text(yaml.safe_dump(tree))
        self._sow_ends = self._ends()

    def forget_control(self) -> None:
        """Delete the control topic."""
        admin = Admin(self.world.config.kafka)
        if admin.partitions_of(control_topic("")) is not None:
            admin.delete([control_topic("")])

    def start(self, number: int, silent_s: float, *, has_control: bool) -> Start:
        """Publish to the old topic, and start a worker while Kafka is silent.

        Raises:
            AssertionError: an update was lost, or was merged in the old topic.
        """
        world = self.world
        world.feed(number, _COMMANDS)
        self.proxy.stall()
        began_s = time.monotonic()
        worker = world.start()
        time.sleep(silent_s)
        self.proxy.flow()
        world.wait(world.is_right, f"merging after a silence of {silent_s:g} s")
        seconds = time.monotonic() - began_s
        worker.kill() if number % 3 == 0 else worker.stop()
        ends = self._ends()
        strays = sum(
            seen.offset >= self._sow_ends[seen.partition] and not (seen.key or b"").startswith(RESERVED)
            for seen in world.read("sow")
        )
        self._sow_ends = ends
        return Start(silent_s, has_control, seconds, strays)

    def close(self) -> None:
        """End workers, proxy and broker."""
        self.proxy.flow()
        self._stack.close()

    def _ends(self) -> dict[int, int]:
        return Admin(self.world.config.kafka).end_offsets(f"{self.world.name}.sow", range(3))


def main() -> int:
    """Print a line for each start; returns 1 if an update was lost or merged in the wrong topic."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.moved_topic", description=__doc__)
    parser.add_argument("--starts", type=int, default=20, help="number of starts (default 20)")
    starts = parser.parse_args().starts
    shortest, longest = _SILENT_S
    with tempfile.TemporaryDirectory(prefix="sowstream-moved-") as directory:
        kafka = SilentKafka(Path(directory))
        try:
            silences = [shortest + (longest - shortest) * n / max(1, starts - 1) for n in range(starts)]
            # First those with the control topic, which does not come back.
            order = [*((s, True) for s in silences[::2]), *((s, False) for s in silences[1::2])]
            failures = 0
            for number, (silent_s, has_control) in enumerate(order, 2):
                if not has_control:
                    kafka.forget_control()
                try:
                    one = kafka.start(number, silent_s, has_control=has_control)
                except AssertionError as error:
                    failures += 1
                    print(
                        f"silent {silent_s:4.1f} s, control topic {has_control}: LOST: {str(error)[:2000]}", flush=True
                    )
                    break
                failures += bool(one.strays)
                print(
                    f"silent {one.silent_s:4.1f} s, control topic {one.has_control}: all merged after "
                    f"{one.seconds:.1f} s, {one.strays} strays",
                    flush=True,
                )
            print(f"{starts} starts, {failures} failures")
        finally:
            kafka.close()
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
