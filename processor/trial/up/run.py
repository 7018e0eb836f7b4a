"""The sequence of `sowstream up`: a broker if none answers, the topics, a worker and a gateway, and their end."""

from __future__ import annotations

import contextlib
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from processor.config import Config
from processor.errors import BrokerUnavailable, ConfigurationError, Stop
from processor.kafka.connection_probe import addresses_of
from processor.runtime.worker.os_process import interruptible
from processor.topics import Problem
from processor.trial import NO_GRID, gateway_is_installed, grid_remedy
from processor.trial.broker.guarded import GuardedProcess
from processor.trial.up.readiness import Readiness
from processor.trial.up.report import Report, parsed, reason_in

if TYPE_CHECKING:
    from processor.trial.broker.embedded import EmbeddedBroker

ApplyTopics: TypeAlias = Callable[[Config, Callable[[str], None]], list[Problem]]
"""Creates the missing topics of the settings, calls back with the name of each, and returns the problems of others."""

_LOOK_S: Final = 0.1
_CONNECT_TIMEOUT_S: Final = 2.0
_LOOPBACK: Final = ("localhost", "127.0.0.1")
"""The hosts at which the embedded broker can be reached."""
_CONFIGURATION: Final = 2
_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The options of `sowstream up`."""

    arguments: tuple[str, ...] = ()
    """The options of the command line by which a worker and a gateway have the same settings."""
    listen: str | None = None
    """The address of the gateway, as in the settings that were given; None: theirs."""
    starts_broker: bool = True
    """False to wait for a broker, and never start one."""
    starts_gateway: bool = True
    """False to serve no page."""
    broker_dir: Path
    """The directory of the records of a broker that is started."""
    heap: str
    """Java's memory for it."""
    is_temporary: bool = False
    """True to keep neither records nor states: then the broker must be one that is started here."""
    is_verbose: bool = False
    """True to show every log line of the programs on a terminal too."""


def run_up(config: Config, options: UpOptions, apply_topics: ApplyTopics) -> int:
    """Run everything of the settings until a signal arrives; returns the exit code.

    All that it has started is ended before it returns or raises: gateway and worker together, then the broker.

    Args:
        config: the settings.
        options: the options.
        apply_topics: creates the missing topics.

    Raises:
        ConfigurationError: the settings cannot work.
        Stop: a broker cannot be started or reached, or one of the programs has ended.
    """
    report = Report(is_verbose=options.is_verbose)
    up = _Up(config, options, report)
    with interruptible():
        try:
            with contextlib.ExitStack() as stack:
                up.run(stack, apply_topics)
        except KeyboardInterrupt as interrupt:
            # The stack has ended everything by now.
            report.say("Stopped.", "stopped", signal=str(interrupt))
    return 0 if up.is_ready else _INTERRUPTED


class _Up:
    """The programs of one run."""

    def __init__(self, config: Config, options: UpOptions, report: Report) -> None:
        self._config = config
        self._options = options
        self._report = report
        self._began_s = time.monotonic()
        self._started_s = 0.0
        self._readiness = Readiness(config)
        self._broker: EmbeddedBroker | None = None
        self._programs: list[GuardedProcess] = []
        self._page = ""
        self.is_ready = False
        """True once every topic was ready."""

    def run(self, stack: contextlib.ExitStack, apply_topics: ApplyTopics) -> None:
        """Start everything, in order, and watch it; the stack ends what was started, the last one first.

        Raises:
            KeyboardInterrupt: a signal ends it.
            Stop: something cannot start, or has ended.
        """
        arguments, has_gateway = [*self._options.arguments], self._can_serve()
        self._provide_broker(stack)
        if self._options.is_temporary:
            directory = tempfile.mkdtemp(prefix="sowstream-up-")
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            arguments += ["--state-dir", directory]
        self._apply(apply_topics)
        stack.callback(self._stop)
        self._started_s = time.monotonic()
        self._start("worker", ["--all", *arguments], self._take_worker_line)
        if has_gateway:
            listen = [] if self._options.listen is None else ["--listen", self._options.listen]
            self._start("gateway", [*arguments, *listen], self._take_gateway_line)
        while True:
            self._look(has_gateway=has_gateway)
            time.sleep(_LOOK_S)

    def _can_serve(self) -> bool:
        """Return whether there is to be a gateway; say why there is none.

        Raises:
            Stop: its address is taken.
        """
        if not self._options.starts_gateway:
            return False
        if not gateway_is_installed():
            what = "No page in a browser: that needs pip install 'sowstream[gateway]'."
            self._report.say(what, "no gateway", why="its packages are not installed")
            return False
        host, port = self._config.gateway.address
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise Stop(
                    f"the gateway cannot listen at {self._config.gateway.listen}: {error.strerror}. Another "
                    "`sowstream up` may run there; choose another address with --listen HOST:PORT, or leave it out "
                    "with --no-gateway"
                ) from None
        return True

    def _provide_broker(self, stack: contextlib.ExitStack) -> None:
        """Start a broker if none answers at an address of this machine.

        Raises:
            ConfigurationError: a broker cannot be started for these settings.
            Stop: it cannot be started.
        """
        options, addresses = self._options, addresses_of(self._config.kafka)
        answering = next((address for address in addresses if _answers(address)), None)
        if answering is not None:
            if options.is_temporary:
                raise ConfigurationError(
                    f"--temporary needs a broker of its own, and one answers at {answering} already; stop that one, "
                    "or choose a free port: --bootstrap localhost:PORT"
                )
            self._report.say(f"Kafka: the one at {answering}.", "kafka found", address=answering)
            return
        host, port = _parts(addresses[0])
        if not options.starts_broker or len(addresses) > 1 or host not in _LOOPBACK:
            return  # The topics wait for it, and their error says why it cannot be reached.
        protocol = self._config.kafka.get("security.protocol", "plaintext")
        if protocol.lower() != "plaintext":
            raise ConfigurationError(
                f"nothing answers at {addresses[0]}, and the broker that `sowstream up` starts has neither TLS nor "
                f"logins (kafka.security.protocol is {protocol}): start the one of these settings"
            )
        self._start_broker(addresses[0], port, stack)

    def _start_broker(self, address: str, port: int, stack: contextlib.ExitStack) -> None:
        try:
            from processor.trial.broker import background  # noqa: PLC0415
            from processor.trial.broker.embedded import EmbeddedBroker  # noqa: PLC0415
        except ImportError as error:
            raise Stop(
                f"nothing answers at {address}, and to start a broker there, {error.name} is needed: "
                "pip install 'sowstream[embedded]'"
            ) from None
        directory = None if self._options.is_temporary else self._options.broker_dir
        if directory is not None and (other := background.find(directory)) is not None:
            raise Stop(
                f"nothing answers at {address}, and a broker at {other.bootstrap} has the directory {directory}: "
                f"use it with --bootstrap {other.bootstrap}, or end it with `sowstream broker stop`"
            )
        self._report.say(f"Kafka: none answers at {address}; starting one.", "kafka starts", address=address)
        began_s = time.monotonic()
        broker = EmbeddedBroker(directory, port, heap=self._options.heap)
        self._broker = stack.enter_context(broker)
        kept = "it keeps nothing" if directory is None else f"its records are in {directory}"
        took_s = time.monotonic() - began_s
        self._report.say(
            f"Kafka: ready in {took_s:.1f} s; {kept}.",
            "kafka ready",
            seconds=round(took_s, 1),
            directory=str(directory),
        )

    def _apply(self, apply_topics: ApplyTopics) -> None:
        """Create the topics.

        Raises:
            BrokerUnavailable: no broker answers.
            Stop: a worker would refuse the topics that exist.
        """
        created: list[str] = []
        try:
            problems = apply_topics(self._config, created.append)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(
                f"{error}. `sowstream up` starts a broker only at an address of this machine, such as "
                "--bootstrap localhost:9092, and not with --no-broker"
            ) from error
        if refused := [str(problem) for problem in problems if problem.severity == "refuse"]:
            raise Stop("\n".join(["a worker would refuse these topics:", *refused]))
        for problem in problems:
            self._report.say(f"Note: {problem}", "warning of a topic", topic=problem.topic, what=problem.what)
        done = f"{len(created)} created" if created else "all there"
        self._report.say(f"Topics: {done}.", "topics applied", created=len(created))

    def _start(self, name: str, words: list[str], on_line: Callable[[str], None]) -> None:
        """Start `sowstream NAME WORDS`."""
        verbose = ["-v"] if self._options.is_verbose else []
        command = [sys.executable, "-m", "processor.cli.main", *verbose, name, *words]
        program = GuardedProcess(name, command, Path.cwd(), on_line=on_line)
        self._programs.append(program)
        program.start()

    def _stop(self) -> None:
        """End the programs in good order, all at once, and report those that did not end well."""
        started = [program for program in self._programs if program.is_started]
        for program in started:
            program.ask_to_stop()
        for program in started:
            was_running = program.is_running
            code = program.await_end()
            if was_running and code != 0:
                self._report.say(
                    f"The {program.name} did not end in good order (exit code {code}):\n"
                    f"{self._report.last_lines(program.tail())}",
                    "program did not end in good order",
                    program=program.name,
                    exit_code=code,
                )

    def _look(self, *, has_gateway: bool) -> None:
        """Check that everything runs, and report once that all is ready.

        Raises:
            Stop: something has ended.
        """
        for program in self._programs:
            if not program.is_running:
                raise self._failure(program)
        if self._broker is not None and not self._broker.is_running:
            raise Stop(f"the broker has ended:\n{self._broker.last_words()}")
        if self.is_ready or not self._readiness.is_complete or (has_gateway and not self._page):
            return
        self.is_ready = True
        took_s, name = time.monotonic() - self._began_s, self._config.names[0]
        self._report.say(
            f"Ready in {took_s:.1f} s. In another terminal: sowstream publish {name}, or sowstream subscribe {name} "
            "--sow. Ctrl-C ends everything.",
            "ready",
            seconds=round(took_s, 1),
        )

    def _failure(self, program: GuardedProcess) -> Stop:
        """The error for a program that has ended by itself."""
        code = program.await_end()
        reason, lines = reason_in(program.tail()), self._report.last_lines(program.tail())
        ended = f"the {program.name} has ended with exit code {code}"
        text = f"{ended}: {reason}" if reason else f"{ended}. Its last lines:\n{lines}" if lines else ended
        return ConfigurationError(text) if code == _CONFIGURATION else Stop(text)

    def _take_worker_line(self, line: str) -> None:
        self._report.show("worker", line)
        for topic in self._readiness.take(parsed(line) or {}):
            took_s = time.monotonic() - self._started_s
            self._report.say(
                topic.sentence(took_s),
                "topic ready",
                topic=topic.name,
                partitions=topic.partitions,
                seconds=round(took_s, 1),
            )

    def _take_gateway_line(self, line: str) -> None:
        self._report.show("gateway", line)
        event = parsed(line) or {}
        if event.get("event") == "the gateway listens":
            self._page = str(event["address"])
            self._report.say(f"Page: {self._page}/", "page", address=self._page)
            if remedy := grid_remedy():
                self._report.say(NO_GRID.format(remedy), "page without its grid", remedy=remedy)


def _parts(address: str) -> tuple[str, int]:
    """The host and the port of `host:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]").lower(), int(port)


def _answers(address: str) -> bool:
    """Return whether anything listens at an address."""
    with contextlib.suppress(OSError), socket.create_connection(_parts(address), timeout=_CONNECT_TIMEOUT_S):
        return True
    return False
