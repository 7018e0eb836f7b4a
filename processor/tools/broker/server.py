"""What the embedded broker has on disk, and the commands that run it.

<data>/server.properties    Kafka's settings, written anew at every start: the ports differ
<data>/log4j2.properties    where Kafka's own log goes
<data>/kafka.log            that log, bounded
<data>/java.log             what Java printed: what went wrong before logging began
<data>/records/             Kafka's log directory: topics and metadata
<data>/tmp/                 Java's temporary files, such as unpacked native libraries
<data>/broker.json          only of a broker in the background: its process and address
"""

from __future__ import annotations

import base64
import re
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

from processor.errors import Stop

HOST = "127.0.0.1"
"""The only address the broker listens on."""
RECORD_BYTES_MAX = 20 * 1024 * 1024
"""Largest batch it takes: room for a record of 16 MiB."""

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
# A topic nobody made is a mistake to be seen.
auto.create.topics.enable=false
# Nobody else is going to join: a group begins at once, and a test may let a member die within a second.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=200
# A dead producer's transaction ends soon after its own timeout.
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
message.max.bytes={RECORD_BYTES_MAX}
replica.fetch.max.bytes={RECORD_BYTES_MAX}
# The cleaner's default buffer is a sixth of the heap.
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=33554432
log.cleaner.backoff.ms=5000
# The broker is its own controller's only peer: short intervals bring it up, and down, without waiting.
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=5000
num.network.threads=2
num.io.threads=4
"""

_SECOND_START = """\
# While a broker starts its partitions have no leader for a moment. Kafka takes such a partition for deleted when a
# transaction ends then, and leaves it there without a marker: open for ever (KAFKA-20734). So what timed out waits.
# Of a setting that occurs twice the last one counts.
transaction.abort.timed.out.transaction.cleanup.interval.ms=60000
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
"""Of Kafka's log: errors, and the exceptions on lines of their own below; not their stacks, which begin with a tab."""


@dataclass(frozen=True, slots=True)
class Server:
    """One broker to be: its files are written by `prepare`, its process is started by somebody else."""

    data_dir: Path
    """Absolute; everything it writes is below."""
    port: int
    """Where clients connect, on the loopback address."""
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
        """Make the directories, and write the settings for this start."""
        controller = f"{HOST}:{free_port()}"
        for directory in ("records", "tmp"):
            (self.data_dir / directory).mkdir(parents=True, exist_ok=True)
        own = f"""\
listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}
advertised.listeners=PLAINTEXT://{self.bootstrap}
controller.quorum.voters=1@{controller}
log.dirs={self.data_dir}/records
"""
        settings = _SETTINGS + own + (_SECOND_START if self._is_formatted else "")
        (self.data_dir / "server.properties").write_text(settings, encoding="utf-8")
        (self.data_dir / "log4j2.properties").write_text(_LOGGING.format(data=self.data_dir), encoding="utf-8")

    def commands(self) -> list[list[str]]:
        """What to run, one after the other: formatting, where nothing is formatted yet, then the broker."""
        settings = str(self.data_dir / "server.properties")
        broker = [*self._java(f"-Xmx{self.heap}", "-XX:+ExitOnOutOfMemoryError"), "kafka.Kafka", settings]
        if self._is_formatted:
            return [broker]
        tool = [*self._java("-Xmx128m", "-XX:TieredStopAtLevel=1"), "kafka.tools.StorageTool"]
        return [[*tool, "format", "-t", cluster_id(), "-c", settings], broker]

    def last_words(self) -> str:
        """The end of what it printed and of the errors it logged: for a message about a broker that did not start."""
        lines = [
            line
            for name, telling in (("java.log", _PRINTED), ("kafka.log", _ERROR))
            for line in [line for line in _lines(self.data_dir / name) if telling.match(line)][-5:]
        ]
        return "\n".join(f"  {line[:300]}" for line in lines)

    @property
    def _is_formatted(self) -> bool:
        """Whether an earlier start has left something here."""
        return (self.data_dir / "records" / "meta.properties").exists()

    def _java(self, *options: str) -> list[str]:
        return [
            str(self.java),
            *options,
            "-XX:-UsePerfData",  # its files would outlive a broker that is killed
            f"-Djava.io.tmpdir={self.data_dir / 'tmp'}",
            f"-Dlog4j2.configurationFile={self.data_dir}/log4j2.properties",
            "-cp",
            self.class_path,
        ]


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []


def free_port() -> int:
    """A loopback port that was free a moment ago; whoever uses it must be ready to find it taken."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def choose_port(wanted: int) -> int:
    """The port to use: the one asked for, or any free one for 0.

    Raises:
        Stop: somebody listens there already.
    """
    if wanted == 0:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            raise Stop(f"the broker cannot have port {wanted} ({error.strerror}); use another, or 0 for any") from None
    return wanted


def cluster_id() -> str:
    """A random id as Kafka writes them; a leading dash would read as an option."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode().replace("-", "A")
