"""The workers of the demo, and its job on Spark: real processes, started and stopped together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from processor.errors import Stop
from processor.tools.broker.guarded import GuardedProcess
from processor.tools.broker.server import free_port

if TYPE_CHECKING:
    from processor.tools.demo.settings import DemoSetup
    from processor.tools.demo.spark_table import SparkTable


class Team:
    """All workers of the demo, and the job on Spark."""

    def __init__(
        self, setup: DemoSetup, directory: Path, table: SparkTable | None = None, *, is_web: bool = False
    ) -> None:
        def worker(name: str, command: Literal["worker", "conflate", "view", "gateway"], **env: str) -> GuardedProcess:
            return GuardedProcess(name, _command(command, setup), directory, env=env)

        self.metrics_port = free_port()
        """The port of the conflater's metrics."""
        self.mergers = [worker("worker 1", "worker"), worker("worker 2", "worker")]
        self.conflater = worker("conflate", "conflate", SOWSTREAM_RUNTIME__METRICS_PORT=str(self.metrics_port))
        self.viewer = worker("view", "view")
        """The worker of the view."""
        self.page = f"127.0.0.1:{free_port()}" if is_web else None
        """The address of the gateway's page; None without a gateway."""
        self.gateway = None if self.page is None else worker("gateway", "gateway", SOWSTREAM_GATEWAY__LISTEN=self.page)
        """The gateway; None without it."""
        self.table = table
        """The job on Spark; None without it."""
        self._down: set[str] = set()

    @property
    def all(self) -> list[GuardedProcess]:
        """Every process."""
        others = [self.gateway, None if self.table is None else self.table.process]
        return [*self.mergers, self.conflater, self.viewer, *[process for process in others if process is not None]]

    def start(self) -> None:
        """Start all."""
        for process in self.all:
            process.start()

    def kill(self, process: GuardedProcess) -> None:
        """Kill one, on purpose."""
        self._down.add(process.name)
        process.kill()

    def revive(self, process: GuardedProcess) -> None:
        """Start a killed process again."""
        process.start()
        self._down.discard(process.name)

    def require_alive(self) -> None:
        """Check that all processes run, except those killed on purpose.

        Raises:
            Stop: a worker ended by itself; with the end of its log.
        """
        for process in self.all:
            if not process.is_running and process.name not in self._down:
                raise Stop(f"{process.name} ended with exit code {process.exit_code}")

    def stop(self) -> dict[str, int]:
        """End all processes in good order, at the same time; returns their exit codes, also of those ended before."""
        started = [process for process in self.all if process.is_started]
        for process in started:
            process.ask_to_stop()
        return {process.name: process.await_end() for process in started}

    def tails(self) -> str:
        """The end of every log."""
        return "\n".join(f"── {process.name}: {process.log.name}\n{process.tail()}" for process in self.all)


def _command(command: str, setup: DemoSetup) -> list[str]:
    # The first process of a state directory serves metrics on exactly the configured port.
    below = {"worker": "", "view": "views"}.get(command, "conflated")
    options = ["-c", str(setup.file), "--bootstrap", setup.bootstrap, "--state-dir", str(setup.state_dir / below)]
    if command == "gateway":
        return [sys.executable, "-m", "processor.cli.main", command, *options]
    config = setup.config
    names = {"worker": [*config.topics], "conflate": [*config.conflated], "view": [*config.views]}[command]
    return [sys.executable, "-m", "processor.cli.main", command, *names, *options]
