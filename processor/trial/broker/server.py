"""The files of the embedded broker, the commands that run it, and the wait until it is ready.

<data>/server.properties    Kafka's settings, written at every start: the ports differ
<data>/log4j2.properties    the configuration of Kafka's log
<data>/kafka.log            Kafka's log, bounded
<data>/java.log             Java's output: errors from before logging began
<data>/records/             Kafka's log directory: topics and metadata
<data>/tmp/                 Java's temporary files, such as unpacked native libraries
<data>/broker.json          only of a broker in the background: its process and address
"""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from processor.errors import BrokerUnavailable, Stop

HOST = "127.0.0.1"
"""The only address that the broker listens on."""
HEAP = "768m"
"""Java's default `-Xmx`: enough for the topics of a laptop, little enough for a small container."""
RECORD_BYTES_MAX = 20 * 1024 * 1024
"""Largest batch that it accepts: room for a record of 16 MiB."""

_SETTINGS = f"""\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
# One broker has one replica of everything, and few partitions start fast.
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
# A missing topic is a mistake that must be visible.
auto.create.topics.enable=false
# No other member is going to join: a group begins at once, and a test may let a member die within a second.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=200
# Queues: a test may let a lease end, or a consumer die, within seconds.
group.share.min.record.lock.duration.ms=1000
group.share.min.session.timeout.ms=1000
group.share.min.heartbeat.interval.ms=200
# A dead producer's transaction ends soon after its own timeout.
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
message.max.bytes={RECORD_BYTES_MAX}
replica.fetch.max.bytes={RECORD_BYTES_MAX}
# The cleaner's default buffer is a sixth of the heap.
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=33554432
log.cleaner.backoff.ms=5000
# The broker is its own controller's only peer: short intervals bring it up, and down, without waiting. No other broker
# could take its partitions: a long session keeps it their leader while a busy machine delays its heartbeats.
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=60000
num.network.threads=2
num.io.threads=4
"""

_SECOND_START = """\
# While a broker starts, its partitions have no leader for a moment. If a transaction ends then, Kafka takes such a
# partition for deleted, and leaves the transaction there without a marker: open for ever (KAFKA-20734). So the expiry
# of transactions waits. Of a repeated setting the last one counts.
transaction.abort.timed.out.transaction.cleanup.interval.ms=60000
"""

_START_AFTER_KILL = """\
# The controller lets the broker in when the session of the killed one is over.
broker.session.timeout.ms=5000
"""

_LOGGING = """\
status=error
appender.file.type=RollingFile
appender.file.name=file
appender.file.fileName={data}/kafka.log
appender.file.filePattern={data}/kafka.%i.log
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %m (%c)%n
appender.file.policies.type=Policies
appender.file.policies.size.type=SizeBasedTriggeringPolicy
appender.file.policies.size.size=10MB
appender.file.strategy.type=DefaultRolloverStrategy
appender.file.strategy.max=2
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""

_PRINTED = re.compile(r"\S")
_ERROR = re.compile(r"\d{4}-\S+ \S+ (ERROR|FATAL) |[^\s\d]")
"""Matches errors in Kafka's log and the exceptions in lines below them; not their stacks, which begin with a tab."""


@dataclass(frozen=True, slots=True)
class Server:
    """The configuration of one broker: `prepare` writes its files, the caller starts its process."""

    data_dir: Path
    """Absolute; all of its files are below it."""
    port: int
    """The port for clients, on the loopback address."""
    heap: str
    """Java's `-Xmx`, such as `768m`."""
    java: Path
    """The `java` program."""
    class_path: str
    """Kafka's jars."""

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"

    def prepare(self) -> None:
        """Create the directories, and write the settings for this start.

        Raises:
            Stop: Kafka cannot have this directory.
        """
        if "," in str(self.data_dir):
            raise Stop(
                f"Kafka cannot keep records below a name with a comma: {self.data_dir}; choose another directory"
            )
        controller = f"{HOST}:{free_port()}"
        for directory in ("records", "tmp"):
            (self.data_dir / directory).mkdir(parents=True, exist_ok=True)
        own = f"""\
listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}
advertised.listeners=PLAINTEXT://{self.bootstrap}
controller.quorum.voters=1@{controller}
log.dirs={_property(self.data_dir)}/records
"""
        settings = _SETTINGS + own
        if self._is_formatted:
            settings += _SECOND_START if self._is_in_good_order else _SECOND_START + _START_AFTER_KILL
        (self.data_dir / "server.properties").write_text(settings, encoding="utf-8")
        (self.data_dir / "log4j2.properties").write_text(
            _LOGGING.format(data=_property(self.data_dir)), encoding="utf-8"
        )

    def commands(self) -> list[list[str]]:
        """The commands to run in order: formatting, if nothing is formatted yet, then the broker."""
        settings = str(self.data_dir / "server.properties")
        broker = [*self._java(f"-Xmx{self.heap}", "-XX:+ExitOnOutOfMemoryError"), "kafka.Kafka", settings]
        if self._is_formatted:
            return [broker]
        tool = [*self._java("-Xmx128m", "-XX:TieredStopAtLevel=1"), "kafka.tools.StorageTool"]
        return [[*tool, "format", "-t", cluster_id(), "-c", settings], broker]

    def last_words(self) -> str:
        """The end of its output and of its logged errors: for a message about a broker that did not start."""
        lines = [
            line
            for name, telling in (("java.log", _PRINTED), ("kafka.log", _ERROR))
            for line in [line for line in _lines(self.data_dir / name) if telling.match(line)][-5:]
        ]
        return "\n".join(f"  {line[:300]}" for line in lines)

    @property
    def _is_formatted(self) -> bool:
        """True if an earlier start has left its files."""
        return (self.data_dir / "records" / "meta.properties").exists()

    @property
    def _is_in_good_order(self) -> bool:
        """True if the earlier broker has ended by itself: then Kafka leaves this file."""
        return (self.data_dir / "records" / ".kafka_cleanshutdown").exists()

    def _java(self, *options: str) -> list[str]:
        return [
            str(self.java),
            *options,
            "-XX:-UsePerfData",  # its files would outlive a broker that is killed
            # Kafka's upper case of "classic" is CLASSİC in Turkish, and the broker ends at its start.
            "-Duser.language=en",
            "-Duser.country=US",
            f"-Djava.io.tmpdir={self.data_dir / 'tmp'}",
            f"-Dlog4j2.configurationFile={self.data_dir}/log4j2.properties",
            "-cp",
            self.class_path,
        ]


def java_environment() -> dict[str, str]:
    """The environment of Java, which in a locale without UTF-8 cannot open files of other names than ASCII."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def _property(path: Path) -> str:
    """A path in a Java properties file: read as Latin-1, with JSON's escapes for all but ASCII."""
    return json.dumps(str(path))[1:-1]


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []


def free_port() -> int:
    """A loopback port that was free a moment ago; another process may take it before it is used."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def choose_port(port: int) -> int:
    """The port to use: the requested one, or any free one for 0.

    Raises:
        Stop: another process listens there.
    """
    if port == 0:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise Stop(f"the broker cannot have port {port} ({error.strerror}); use another, or 0 for any") from None
    return port


def cluster_id() -> str:
    """A random id in Kafka's format; a leading dash would read as an option."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A")


_ASK_TIMEOUT_S = 2.0
_PROBE = "sowstream-probe"
"""The name of a group and of a transactional producer that no one else uses."""


def is_ready(bootstrap: str, *, timeout_s: float = _ASK_TIMEOUT_S) -> bool:
    """Return whether the Kafka broker at this address accepts topics, groups and transactions.

    It answers long before. It lists itself once the controller has unfenced it; the first transactional producer,
    and a question about any group, make it create its internal topics, and are answered when these have leaders.
    """
    # Here, as `sowstream --help` needs this module, and no client.
    from confluent_kafka import KafkaError, KafkaException, Producer  # noqa: PLC0415
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    from processor.kafka.admin.questions import COORDINATOR_TIMEOUT_S  # noqa: PLC0415

    kafka: dict[str, str | int | float | bool] = {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.max.ms": 100,
        "log_level": 0,
    }
    admin = AdminClient(kafka)
    try:
        if not admin.list_topics(timeout=timeout_s).brokers:
            return False
        Producer({**kafka, "transactional.id": _PROBE}).init_transactions(timeout_s)
        # A broker that starts finds its coordinator late.
        admin.describe_consumer_groups([_PROBE], request_timeout=COORDINATOR_TIMEOUT_S)[_PROBE].result(timeout_s)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND)
    except TimeoutError:
        return False
    return True


def await_ready(server: Server, *, has_ended: Callable[[], bool], timeout_s: float) -> None:
    """Return as soon as the broker is ready.

    Raises:
        BrokerUnavailable: its process ended, or it is not ready after `timeout_s`; with the end of its logs.
    """
    deadline_s = time.monotonic() + timeout_s
    while not is_ready(server.bootstrap):
        if has_ended():
            raise BrokerUnavailable(f"the embedded broker ended while it started:\n{_evidence(server)}")
        if time.monotonic() > deadline_s:
            raise BrokerUnavailable(
                f"the embedded broker is not ready after {timeout_s:.0f} s{busy()}:\n{_evidence(server)}"
            )


def busy() -> str:
    """The words for a machine on which more programs want to run than it has processors for; empty for others."""
    (load, *_), cores = os.getloadavg(), os.cpu_count() or 1
    return f"; this machine is busy, with a load of {load:.0f} on {cores} processors" if load > 2 * cores else ""


def _evidence(server: Server) -> str:
    log = server.last_words()
    return log or f"  it logged no error; its heap was {server.heap}"
