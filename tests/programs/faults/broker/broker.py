"""One real broker that a scenario may kill, stop and start again, with the same data and the same ports."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import psutil

from processor.errors import BrokerUnavailable
from processor.trial.broker import guard
from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java
from processor.trial.broker.server import HOST, Server, await_ready, cluster_id
from tests.programs.faults.broker.ports import quiet_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 20.0
_QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""Java's quick compiler: a broker that is killed every minute gains nothing from the thorough one."""
_SKIPPED = "these partitions are likely deleted already"


class AtFault(AssertionError):
    """The broker itself violated its guarantees.

    When a transaction ends while one of its partitions has no leader, as during a start, Kafka (seen with 4.3.1) takes
    the partition for deleted and writes no marker there (KAFKA-20734): the transaction has ended, and is still open in
    that partition.
    """


class Place(NamedTuple):
    """A broker's node number, and the port of its controller."""

    node: int
    """The broker's number in the cluster, from 1."""
    controller_port: int
    """The port on which the other brokers reach its controller."""


class Broker:
    """A broker of its own, or one of a cluster. It ends with the process that started it, however that process ends.

    Its second listener advertises `proxied_port` to clients: the port of a proxy, if there is one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        places: Sequence[Place] = (),
        node: int = 1,
        cluster: str = "",
        heap: str = "384m",
        settings: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Configure the broker; nothing runs before `start`.

        Args:
            directory: the directory of its data, settings and logs.
            places: the whole cluster; none: this broker alone.
            node: the broker's number among the places.
            cluster: the cluster's id; must be the same for all its brokers.
            heap: Java's `-Xmx`.
            settings: Kafka settings that differ from those of a test's broker.
            env: more variables of Java's environment.
        """
        self.places = list(places) or [Place(1, quiet_port())]
        self.node = node
        self.proxied_port = quiet_port()
        """The port that the second listener advertises to clients: that of a proxy."""
        self.target_port = quiet_port()
        """The port on which the second listener accepts connections."""
        self._cluster = cluster or cluster_id()
        self._more = dict(settings or {})
        self._env = dict(env or {})
        self._server = Server(directory.absolute(), quiet_port(), heap, find_java(), class_path())
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """The broker's address for clients that connect directly."""
        return self._server.bootstrap

    @property
    def proxied_bootstrap(self) -> str:
        """The broker's address for clients that connect through a proxy."""
        return f"{HOST}:{self.proxied_port}"

    @property
    def port(self) -> int:
        """The port for clients that connect directly."""
        return self._server.port

    @property
    def skipped_markers(self) -> str | None:
        """Kafka's own log message if it left a transaction open for ever; see `AtFault`."""
        logs = self._server.data_dir.glob("kafka*.log")
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines() if _SKIPPED in line]
        return lines[0] if lines else None

    def start(self) -> None:
        """Start the broker, and return when it accepts topics and transactions."""
        self.begin()
        try:
            self.await_ready()
        except BrokerUnavailable as error:
            self.stop()
            if "Address already in use" not in str(error):
                raise
            self.begin()  # Another process took the controller's port a moment before; it has another one now.
            self.await_ready()

    def begin(self) -> None:
        """Start the broker without waiting: the brokers of a cluster need one another."""
        assert self._guard is None, "it runs already"
        self._server.prepare()
        with (self._server.data_dir / "server.properties").open("a", encoding="utf-8") as settings:
            settings.write(self._settings())
        *formatting, running = self._server.commands()
        for command in formatting:
            command[command.index("-t") + 1] = self._cluster
        order = {
            "commands": [*formatting, running],
            "log": str(self._server.data_dir / "java.log"),
            "remove": None,
            "stop_timeout_s": _STOP_TIMEOUT_S,
        }
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(guard.__file__), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=_QUICK_JAVA | os.environ | self._env,
        )

    def await_ready(self) -> None:
        """Return when the broker accepts topics and transactions."""
        assert self._guard is not None
        output = self._guard.stdout
        await_ready(
            self._server,
            has_ended=lambda: bool(select.select([output], [], [], 0)[0]),
            timeout_s=_START_TIMEOUT_S,
        )

    def stop(self) -> None:
        """Stop the broker in good order, if it runs."""
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._end()

    def kill(self) -> None:
        """Kill the broker with SIGKILL, as a power cut would."""
        assert self._guard is not None
        for java in psutil.Process(self._guard.pid).children():
            java.kill()
        self._end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _end(self) -> None:
        guard_process, self._guard = self._guard, None
        assert guard_process is not None
        try:
            guard_process.wait(_STOP_TIMEOUT_S + 5)
        except subprocess.TimeoutExpired:
            os.killpg(guard_process.pid, signal.SIGKILL)
            guard_process.wait()
        for pipe in (guard_process.stdin, guard_process.stdout):
            assert pipe is not None
            pipe.close()

    def _settings(self) -> str:
        """The settings that differ from a laptop's broker; of a setting that occurs twice, Kafka uses the last."""
        own = dict(self.places)[self.node]
        copies = min(3, len(self.places))
        in_sync = max(1, copies - 1)
        more = "".join(f"{name}={value}\n" for name, value in self._more.items())
        voters = ",".join(f"{place.node}@{HOST}:{place.controller_port}" for place in self.places)
        return f"""\
node.id={self.node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://{self.bootstrap},PROXIED://{HOST}:{self.target_port},CONTROLLER://{HOST}:{own}
advertised.listeners=PLAINTEXT://{self.bootstrap},PROXIED://{self.proxied_bootstrap}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
default.replication.factor={copies}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={copies}
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={in_sync}
log.cleaner.dedupe.buffer.size=8388608
{more}"""
