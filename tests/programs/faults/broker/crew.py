"""Runs workers as in production: a worker that ends with an error is started again."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Self

import yaml
from confluent_kafka import KafkaException

from processor.errors import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from tests.endtoend.world import Worker, World
    from tests.programs.faults.clocks.skewed_clock import SkewedClock

_LOOK_S = 0.2
_BACK_OFF_S = 1.0
_LAST_WORDS = "sowstream: "


def through(world: World, bootstrap: str, **kafka: Any) -> None:
    """Let workers that start from now on connect to another address, with these librdkafka properties."""
    tree = yaml.safe_load(world.file.read_text())
    tree["kafka"] |= {"bootstrap.servers": bootstrap, **kafka}
    world.file.write_text(yaml.safe_dump(tree))


class Crew:
    """Several supervised workers of a world: one that ends with exit code 1 is started again, as a pod is.

    A worker that ends with any other exit code raises an error where the block is left.
    """

    def __init__(self, world: World, size: int = 1, *, clocks: Sequence[SkewedClock] = ()) -> None:
        """Set the number of workers; the block starts them. With `clocks` the workers take turns at these."""
        self.world = world
        self.size = size
        self.reasons: list[str] = []
        """The last error of each worker that ended."""
        self._clocks = clocks
        self._workers: list[Worker] = []
        self._wrong: list[str] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name="crew", daemon=True)

    @property
    def logs(self) -> str:
        """The logs of all workers, from the first to the last."""
        return "\n".join(worker.file.read_text(errors="replace") for worker in self.world.workers)

    def count(self, event: str) -> int:
        """How often the workers have logged an event."""
        return self.logs.count(f'"event": "{event}"')

    def has_logged(self, event: str) -> list[bool]:
        """Return True for each running worker that has logged an event, and False for the others."""
        return [f'"event": "{event}"' in worker.file.read_text(errors="replace") for worker in self._workers]

    def await_event(self, event: str, patience_s: float = 90.0) -> None:
        """Wait until a worker logs an event."""
        self.wait(lambda: self.count(event) > 0, event, patience_s)

    def settle(self, patience_s: float = 120.0) -> None:
        """Wait until all input is processed."""
        self.wait(lambda: processed(self.world), "processing all input", patience_s)

    def wait(self, reached: Callable[[], bool], what: str, patience_s: float = 90.0) -> None:
        """Wait until a condition holds.

        Raises:
            AssertionError: it took longer than `patience_s`; with the end of the last worker's log.
        """
        deadline_s = time.monotonic() + patience_s
        while not reached():
            assert not self._wrong, self._wrong[0]
            logs_text = "\n".join(worker.log() for worker in self._workers)
            assert time.monotonic() < deadline_s, f"{what} did not happen in {patience_s:g} s\n{logs_text}"
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        """Kill all workers, as a power cut would; `revive` starts them again."""
        with self._lock:
            for worker in self._workers:
                worker.kill()
            self._workers = []

    def revive(self) -> None:
        """Start the missing workers."""
        with self._lock:
            self._workers += [self._start() for _ in range(self.size - len(self._workers))]

    def __enter__(self) -> Self:
        self.revive()
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._watcher.join()
        for worker in self._workers:
            if error is not None:
                worker.kill()
            elif worker.process.poll() is not None:
                self._record_end(worker)  # After the last check.
            elif (code := worker.stop()) != 0:
                self._wrong.append(f"exit code {code} when told to stop:\n{worker.log()}")
        if error is None:
            assert not self._wrong, self._wrong[0]

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            with self._lock:
                ended = [worker for worker in self._workers if worker.process.poll() is not None]
                self._workers = [worker for worker in self._workers if worker not in ended]
            for worker in ended:
                self._record_end(worker)
            if ended and not self._over.wait(_BACK_OFF_S):
                self.revive()

    def _start(self) -> Worker:
        clock = self._clocks[len(self.world.workers) % len(self._clocks)] if self._clocks else None
        worker = self.world.start(env=None if clock is None else clock.env)
        worker.is_expected_to_end = True  # Supervised here.
        return worker

    def _record_end(self, worker: Worker) -> None:
        reason = last_error(worker.log())
        self.reasons.append(reason)
        if worker.process.returncode != 1 or not reason:
            self._wrong.append(f"exit code {worker.process.returncode}:\n{worker.log()}")


def processed(world: World) -> bool:
    """Return True if the group has committed the end of the input; False also if no broker says so."""
    try:
        return world.processed()
    except (KafkaException, Stop):
        return False


def last_error(log: str) -> str:
    """The last message that a worker printed for people about the reason of its end."""
    messages = [line for line in log.splitlines() if line.startswith(_LAST_WORDS)]
    return messages[-1].removeprefix(_LAST_WORDS) if messages else ""
