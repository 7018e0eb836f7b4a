"""The sequence of the demo: a broker, topics, workers, feeds, the display, and the final checks."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from rich.console import Console

from processor.errors import Stop
from processor.installation.configured_pipelines import specs
from processor.kafka.admin.admin import Admin
from processor.runtime.worker.os_process import interruptible
from processor.trial import NO_GRID, grid_remedy
from processor.trial.broker import EmbeddedBroker
from processor.trial.broker.guarded import GuardedProcess
from processor.trial.broker.jars import class_path
from processor.trial.broker.server import busy
from processor.trial.demo.check import CheckResult, check_all
from processor.trial.demo.feeds import PAIRS, FeedPublisher, OrderDesk, PriceFeed
from processor.trial.demo.live_view import LiveView, Moment, report_findings, report_numbers
from processor.trial.demo.picture import Camera
from processor.trial.demo.processes import TOPIC, SparkTable, TableFigures, Team
from processor.trial.demo.settings import CONFLATED, PARTITIONS, DemoSetup, write_settings
from processor.trial.demo.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOOK_S: Final = 0.25
_START_TIMEOUT_S: Final = 90.0
_SPARK_START_TIMEOUT_S: Final = 600.0
"""The first start fetches the connector."""
_DRAIN_TIMEOUT_S: Final = 90.0
_KILL_AFTER_S: Final = 15.0
_DOWN_S: Final = 2.0
_ORDERS_SHARE: Final = 0.4


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the demo."""

    seconds: float | None = None
    """Time for which the feeds publish; None: until interrupted, without checks."""
    rate: float = 2_000.0
    """Records per second, of both feeds together."""
    bootstrap: str | None = None
    """An existing broker; None: an embedded one."""
    kill_worker: bool = False
    """True to kill one worker midway, like a power cut, and start it again."""
    spark: bool = False
    """True if a job on Spark keeps the orders as a table, which is shown and checked too."""
    is_web: bool = False
    """True if a gateway serves the topics to browsers, with a page."""
    seed: int = 20_261
    """The seed of the feeds."""


def run_demo(options: DemoOptions) -> int:
    """Run the demo; returns the exit code: 0 if all checks hold, or if it was interrupted before them.

    Raises:
        Stop: it could not run; started processes are ended.
    """
    console = Console(highlight=False, markup=False)
    with interruptible(), contextlib.ExitStack() as stack:
        try:
            return _run(options, console, stack)
        except KeyboardInterrupt as interrupt:
            console.print(f"Stopped by {interrupt}; nothing was checked. Cleaning up.")
            return 0 if str(interrupt) == "SIGINT" else 1


def _run(options: DemoOptions, console: Console, stack: contextlib.ExitStack) -> int:
    directory = Path(tempfile.mkdtemp(prefix="sowstream-demo-"))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    stack.enter_context(_own_log(directory / "demo.log"))
    setup = _set_up(options, directory, console, stack)
    table = SparkTable(setup, directory) if options.spark else None
    team = Team(setup, directory, table, is_web=options.is_web)
    if team.page is not None:
        console.print(f"The topics in a browser: http://{team.page}/")
        if remedy := grid_remedy():
            console.print(NO_GRID.format(remedy))
    # From here on, an error ends all processes too.
    stack.callback(team.stop)
    try:
        team.start()
        return _Demo(options, console, setup, team, stack).run()
    except Stop:
        console.print(team.tails(), soft_wrap=True)
        raise


def _set_up(options: DemoOptions, directory: Path, console: Console, stack: contextlib.ExitStack) -> DemoSetup:
    """Create the topics, on an embedded broker if none is named."""
    if options.bootstrap is None:
        class_path()  # Downloaded the first time, with a progress bar of its own.
        began_s = time.monotonic()
        if not console.is_terminal:
            console.print("Starting an Apache Kafka of our own.")
        with console.status("Starting an Apache Kafka of our own"):
            broker = stack.enter_context(EmbeddedBroker())
        console.print(f"Kafka at {broker.bootstrap}, ready in {time.monotonic() - began_s:.1f} s.")
        setup = write_settings(directory, broker.bootstrap, "", is_endless=options.seconds is None)
        Admin(setup.config.kafka).create(specs(setup.config))
    else:
        prefix = f"demo_{uuid.uuid4().hex[:8]}_"
        setup = write_settings(directory, options.bootstrap, prefix, is_endless=options.seconds is None)
        admin = Admin(setup.config.kafka)
        stack.callback(admin.delete, setup.kafka_topics())
        admin.create(specs(setup.config))
        console.print(f"Topics {setup.prefix}… on {options.bootstrap}; they are deleted at the end.", soft_wrap=True)
    return setup


class _Demo:
    """The demo from the first record to the checks."""

    def __init__(
        self, options: DemoOptions, console: Console, setup: DemoSetup, team: Team, stack: contextlib.ExitStack
    ) -> None:
        self._options = options
        self._console = console
        self._setup = setup
        self._team = team
        sources = {
            "orders": OrderDesk(Random(f"orders {options.seed}")).next,  # noqa: S311 - not used for secrets
            "prices": PriceFeed(Random(f"prices {options.seed}")).next,  # noqa: S311
        }
        self._feeds = {
            name: FeedPublisher(setup.config.kafka, setup.topic(name, "publish"), source)
            for name, source in sources.items()
        }
        for feed in self._feeds.values():
            stack.callback(feed.cancel)
        self._watcher = Watcher(setup)
        stack.callback(self._watcher.stop)
        self._camera = Camera(self._watcher)
        self._view = LiveView(console)
        self._began_s = time.monotonic()
        self._to_do = self._accident(team.mergers[0]) if options.kill_worker else iter(())

    def run(self) -> int:
        """Run all phases; returns the exit code."""
        with self._view:
            self._warm_up()
            self._publish()
            ran_s = time.monotonic() - self._began_s
            self._drain()
        picture = self._camera.take(self._sent())
        with self._watcher.lock:
            latencies_ms = self._watcher.seen.latency.all_ms(0.5, 0.99, 1.0)
        asked_s = time.monotonic()
        wrong = [f"{name}: exit code {code}" for name, code in self._team.stop().items() if code != 0]
        stopped = CheckResult(f"workers stopped in good order, in {time.monotonic() - asked_s:.1f} s", tuple(wrong))
        self._read_to_the_end()
        all_right = report_findings(self._console, [stopped, *self._checks()])
        report_numbers(self._console, picture, latencies_ms, ran_s)
        if not all_right:
            self._console.print(self._team.tails(), soft_wrap=True)
            self._console.print("Something is wrong: see FAIL above.", style="bold red")
        return 0 if all_right else 1

    def _warm_up(self) -> None:
        """Send the first records and wait until they are received: then all workers work."""
        self._watcher.start()
        for feed in self._feeds.values():
            feed.send(PAIRS)
        self._until(
            lambda: all(self._watcher.seen.received[name].deltas >= PAIRS for name in CONFLATED),
            "starting the workers",
            _START_TIMEOUT_S,
        )
        if (table := self._team.table) is not None:
            # Else a short run would end before the table has a row.
            self._until(lambda: table.figures() is not None, "starting Spark", _SPARK_START_TIMEOUT_S)
        self._watcher.forget_latency()

    def _publish(self) -> None:
        """Let the feeds run for the chosen time."""
        rate, seconds = self._options.rate, self._options.seconds
        self._began_s = time.monotonic()
        self._feeds["orders"].start(rate * _ORDERS_SHARE)
        self._feeds["prices"].start(rate * (1 - _ORDERS_SHARE))
        while seconds is None or time.monotonic() - self._began_s < seconds:
            next(self._to_do, None)
            elapsed_s = time.monotonic() - self._began_s
            self._look(f"{elapsed_s:.0f} s" + ("" if seconds is None else f" of {seconds:g}"))
        for _ in self._to_do:
            self._look("waiting for the killed worker")
        for feed in self._feeds.values():
            feed.finish()

    def _drain(self) -> None:
        """Wait until all checks hold: then everything has passed all stages. One that never holds is reported."""
        until_s = time.monotonic() + _DRAIN_TIMEOUT_S
        while time.monotonic() < until_s and any(check.wrong for check in self._checks()):
            self._look("feeds stopped; finishing")

    def _read_to_the_end(self) -> None:
        """Receive what is left in the topics after the workers have stopped, such as a delta sent twice."""
        admin, until_s = Admin(self._setup.config.kafka), time.monotonic() + _DRAIN_TIMEOUT_S
        ends = {
            (topic, partition): end
            for topic in self._watcher.topics
            for partition, end in admin.end_offsets(topic, range(PARTITIONS)).items()
        }
        while not self._watcher.has_read(ends):
            if time.monotonic() > until_s:
                raise Stop(
                    f"the ends of the topics were not read in {_DRAIN_TIMEOUT_S:g} s; does a transaction stand open? "
                    "`sowstream transactions list` finds it"
                )
            time.sleep(_LOOK_S)

    def _checks(self) -> list[CheckResult]:
        """The checks of what was received so far."""
        with self._watcher.lock:
            received = self._watcher.seen.received
            results = check_all({name: feed.sent for name, feed in self._feeds.items()}, received)
            if self._team.table is not None:
                results.append(self._team.table.check(received[TOPIC].sow))
        return results

    def _accident(self, worker: GuardedProcess) -> Iterator[None]:
        """Kill a worker midway and start it again a moment later; one step for each look."""
        after_s = _KILL_AFTER_S if self._options.seconds is None else self._options.seconds * 0.4
        while time.monotonic() - self._began_s < after_s:
            yield
        self._team.kill(worker)
        self._view.say(f"kill -9 {worker.name}, {after_s:g} s after the start.")
        while time.monotonic() - self._began_s < after_s + _DOWN_S:
            yield
        self._team.revive(worker)
        self._view.say(f"{worker.name} started again {_DOWN_S:g} s later.")

    def _until(self, is_done: Callable[[], bool], phase: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_done():
            if time.monotonic() > deadline:
                raise Stop(f"{phase}: not done after {timeout_s:g} s{busy()}; the ends of the workers' logs are above")
            self._look(phase)

    def _look(self, phase: str) -> None:
        """Update the display, check the feeds and workers, and wait a moment."""
        self._team.require_alive()
        for error in (*(feed.error for feed in self._feeds.values()), self._watcher.error):
            if error is not None:
                raise error
        workers = [(process.name, process.is_running) for process in self._team.all]
        moment = Moment(phase, time.monotonic() - self._began_s, workers)
        self._view.show(moment, self._camera.take(self._sent()), self._table())
        time.sleep(_LOOK_S)

    def _table(self) -> TableFigures | None:
        return None if self._team.table is None else self._team.table.figures()

    def _sent(self) -> dict[str, int]:
        return {name: feed.sent.count for name, feed in self._feeds.items()}


@contextlib.contextmanager
def _own_log(file: Path) -> Iterator[None]:
    """Send the log of this process's clients to a file: on the terminal it would break the display."""
    logger, handler = logging.getLogger("sowstream"), logging.FileHandler(file)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
        handler.close()
