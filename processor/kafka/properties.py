"""The librdkafka settings of every client, and its log without repetitions.

The user's settings have priority, except where a guarantee needs ours.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from processor.kafka.tokens import with_callback
from processor.topics.family import BATCH_BYTES_MAX, MESSAGE_MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping


_VARYING: Final = re.compile(r" \(after \d+ms in state [^)]*\)|\[rdkafka#[^\]]*\] ")
_BROKEN: Final = re.compile(r"\(after \d+ms in state (?:UP|UPDATE|REAUTH)\b")
_DIFFERENT_MAX: Final = 200  # Lines remembered; a cluster in trouble produces fewer.


class RepeatedLines(logging.Filter):
    """Lets the same line pass once in a while, with the number of repetitions dropped since then."""

    def __init__(self, interval_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the filter.

        Args:
            interval_s: least time between two lines that are equal except for the client and a duration.
            clock: a monotonic clock, in seconds.
        """
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock
        # By line, the time when it passed, and the number of repetitions since.
        self._passed: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line passes."""
        text = record.getMessage()
        line, now_s = _VARYING.sub("", text), self._clock()
        passed_s, dropped = self._passed.get(line, (None, 0))
        if passed_s is not None and now_s - passed_s < self._interval_s:
            self._passed[line] = (passed_s, dropped + 1)
            return False
        if len(self._passed) >= _DIFFERENT_MAX:
            self._passed.clear()
        self._passed[line] = (now_s, 0)
        if dropped:
            record.msg, record.args = f"{text} [{dropped} more since the last such line]", ()
        return True


class ConnectionBreaks:
    """A logger for one client that passes every line on and counts the connections that broke while they were up.

    librdkafka reports a break in its log only. It sends the requests that were in flight again by itself, and succeeds:
    no error reports that a request may have been sent twice. Not counted are connections that could not be made, and
    those that a broker closed because they were idle. librdkafka logs the same line once in 30 s: the client is to be
    given up at the first one.
    """

    def __init__(self, log: logging.Logger) -> None:
        """Pass lines on to this logger."""
        self._log = log
        self.count = 0
        """Breaks so far; up to date after the client was polled."""

    def log(self, level: int, text: str, *arguments: object) -> None:
        """Log a line as `logging.Logger.log` does; librdkafka's arguments are its facility, the client, the message."""
        if len(arguments) == 3 and arguments[0] == "FAIL" and _BROKEN.search(str(arguments[2])):
            self.count += 1
        self._log.log(level, text, *arguments)


_FRAMING_BYTES: Final = 1024 * 1024  # Keys, headers and protocol overhead of a message of the largest size.
PRODUCED_BYTES_MAX: Final = MESSAGE_MAX_BYTES + _FRAMING_BYTES
"""The size of the largest record that a producer accepts."""
_MEMBERSHIP: Final = frozenset(("group.protocol", "group.remote.assignor"))  # For members of groups only.
# A member learns of a rebalance, and that its coordinator has moved, by a heartbeat. After a broker's death there is no
# coordinator for up to 14 s: with an interval of 5 s, sessions of 20 s were lost in 4 of 43 kills, and new members wait
# until those before them expire.
_HEARTBEAT_S: Final = 1.0
# For members of groups, too: other clients keep librdkafka's own limits, which depend on one another.
_MEMBER_LIMITS: Final = frozenset(("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms"))
_POLL_INTERVAL_S: Final = 300.0
_FETCH_BYTES_MAX: Final = 1024**3  # librdkafka accepts a little less than 2 GiB.
_FETCH_BYTES_MIN: Final = 1024**2
_UNPACKED: Final = 8
"""Memory of a response by its size: LZ4 packs small JSON to a quarter, and librdkafka needs as much again."""
_MESSAGE_BYTES: Final = 512
"""Memory of a small record in librdkafka's queue."""
_QUEUED_MIN: Final = 1_000
_QUEUED_MAX: Final = 50_000
_QUEUE_BYTES: Final = 256 * 1024 * 1024
_INFO: Final = 6  # The syslog level, as librdkafka uses it.

log = logging.getLogger("sowstream.librdkafka")
log.addFilter(RepeatedLines(60.0))  # An outage has a line of its own as often.


def common(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Settings of every client: the user's properties and our logger."""
    return {
        "bootstrap.servers": "localhost:9092",
        # Seconds of back-off after a lost connection would outlast most restarts of a broker.
        "reconnect.backoff.max.ms": "2000",
        # Packets to a machine that is gone are dropped without notice; the default waits half a minute for an answer.
        "socket.connection.setup.timeout.ms": "2500",
        **{name: value for name, value in with_callback(kafka).items() if name not in _MEMBERSHIP | _MEMBER_LIMITS},
        "logger": log,
    }


def admin(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Settings of every client for administration: connected to each broker, and not only to those it asks.

    While a request waits for a broker that refuses connections, librdkafka (2.16.0) lets a client that connects on
    demand try again at once, without any back-off: a whole core until the broker is back. This one tries as often as
    `reconnect.backoff.max.ms` says.
    """
    return {"enable.sparse.connections": "false", **common(kafka)}


def consumer(kafka: Mapping[str, str], *, group: str) -> dict[str, Any]:
    """Settings of every reader: committed records only, and no automatic offset commits."""
    return {
        "fetch.wait.max.ms": "100",
        # The default of a second stalls a full queue for as long.
        "fetch.queue.backoff.ms": "20",
        "queued.min.messages": "50000",
        "queued.max.messages.kbytes": "65536",
        **common(kafka),
        "group.id": group,
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        # No record is skipped or read twice silently: every start offset is given explicitly.
        "auto.offset.reset": "error",
    }


def is_new_protocol(kafka: Mapping[str, str]) -> bool:
    """Return whether the brokers assign the partitions (KIP-848), and not the members."""
    return kafka.get("group.protocol", "classic").lower() == "consumer"


def group_member(
    kafka: Mapping[str, str],
    *,
    group: str,
    session_timeout_s: float,
    instance: str | None = None,
    prefetch_bytes: int | None = None,
) -> dict[str, Any]:
    """Settings of a worker's input: a member of the group, rebalanced without stopping the others.

    Args:
        kafka: the user's properties.
        group: the consumer group.
        session_timeout_s: how long the group keeps a silent member; in the new protocol the brokers decide.
        instance: the name of a static member; None: a dynamic member.
        prefetch_bytes: input that may wait in memory; None: the limit of every reader.
    """
    settings = consumer(kafka, group=group) | {"enable.partition.eof": "true"}
    settings |= {name: kafka[name] for name in _MEMBER_LIMITS if name in kafka}
    # A turn of the loop may be long; `runtime.stuck_timeout_s` ends one that hangs.
    settings.setdefault("max.poll.interval.ms", str(int(max(_POLL_INTERVAL_S, session_timeout_s) * 1000)))
    if prefetch_bytes is not None:
        limits = prefetch(prefetch_bytes, int(kafka.get("message.max.bytes", 0)))
        settings |= {name: value for name, value in limits.items() if name not in kafka}
    if instance is not None:
        settings["group.instance.id"] = instance
    if is_new_protocol(kafka):
        # librdkafka refuses the properties of the classic protocol: the brokers set session and assignment.
        return settings | {name: kafka[name] for name in _MEMBERSHIP if name in kafka}
    return {
        "session.timeout.ms": str(int(session_timeout_s * 1000)),
        "heartbeat.interval.ms": str(int(1000 * min(session_timeout_s / 4, _HEARTBEAT_S))),
        **settings,
        "partition.assignment.strategy": "cooperative-sticky",
    }


def prefetch(limit_bytes: int, record_bytes_max: int = 0) -> dict[str, str]:
    """Settings that limit a reader's queue to a size, with room for at least one record.

    librdkafka fetches while its queue is below the limit, and then receives a full response: so the limit is shared
    between waiting records and one response on its way. It does not fetch while `queued.min.messages` wait. A response
    is counted as it comes, packed: small records that LZ4 has packed take several times as much in memory.
    """
    share = min(max(limit_bytes // 2, _FRAMING_BYTES, record_bytes_max), _FETCH_BYTES_MAX)
    return {
        "queued.max.messages.kbytes": str(share // 1024),
        "fetch.max.bytes": str(max(share // _UNPACKED, min(share, _FETCH_BYTES_MIN), record_bytes_max)),
        "queued.min.messages": str(min(_QUEUED_MAX, max(_QUEUED_MIN, share // _MESSAGE_BYTES))),
    }


def log_reader(kafka: Mapping[str, str], *, group: str, fetch_wait_ms: int | None = None) -> dict[str, Any]:
    """Settings of a reader that assigns itself partitions and is notified of their ends.

    Args:
        kafka: the user's properties.
        group: the consumer group.
        fetch_wait_ms: how long a broker may wait for a further record before it reports an end; None: as every reader.
    """
    quick = {} if fetch_wait_ms is None else {"fetch.wait.max.ms": str(fetch_wait_ms)}
    return consumer(quick | dict(kafka), group=group) | {"enable.partition.eof": "true"}


def producer(
    kafka: Mapping[str, str], *, queue_bytes: int = _QUEUE_BYTES, record_bytes_max: int = PRODUCED_BYTES_MAX
) -> dict[str, Any]:
    """Settings of every writer: the partitioner of Java and Spark, no loss, order kept.

    Args:
        kafka: the user's properties.
        queue_bytes: records that may wait to be sent, at least one of the largest size.
        record_bytes_max: the size of the largest record that is accepted.
    """
    return {
        "linger.ms": "5",
        "compression.type": "lz4",
        "queue.buffering.max.messages": "1000000",
        # A queue without room for the largest record would refuse it for ever.
        "queue.buffering.max.kbytes": str(-(-max(queue_bytes, record_bytes_max + _FRAMING_BYTES) // 1024)),
        **common(kafka),
        # librdkafka's own default differs from Java's and would spread a key over two workers.
        "partitioner": "murmur2_random",
        "enable.idempotence": "true",
        # A topic's limit applies to batches, and every topic accepts one of this size; a larger record is sent alone.
        "batch.size": str(min(int(kafka.get("batch.size", BATCH_BYTES_MAX)), BATCH_BYTES_MAX)),
        "message.max.bytes": str(record_bytes_max),
    }


def transactional(
    kafka: Mapping[str, str],
    *,
    transactional_id: str,
    transaction_timeout_s: float,
    logger: object = log,
    queue_bytes: int = _QUEUE_BYTES,
    record_bytes_max: int = PRODUCED_BYTES_MAX,
) -> dict[str, Any]:
    """Settings of a worker's output; `logger` must receive every broken connection. The others as for `producer`."""
    timeout_ms = int(transaction_timeout_s * 1000)
    asked_ms = int(kafka.get("message.timeout.ms") or kafka.get("delivery.timeout.ms") or 0)
    passed_on = {name: value for name, value in kafka.items() if name != "delivery.timeout.ms"}
    # No reader sees a record before the commit, which waits for no linger time: larger batches cost no time, and on two
    # cores, the broker's share of them included, they halve the broker's work for each record.
    settings = producer({"linger.ms": "25"} | passed_on, queue_bytes=queue_bytes, record_bytes_max=record_bytes_max)
    # When the last connection breaks, librdkafka would forget every broker and ask the bootstrap servers: the open
    # transaction then hangs until its timeout (seen in 2.16), and a new producer asks them anyway.
    settings.setdefault("metadata.recovery.strategy", "none")
    return settings | {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": str(timeout_ms),
        # A publisher may wait longer than a transaction lasts.
        "message.timeout.ms": str(min(asked_ms or timeout_ms, timeout_ms)),
        # The topics existed at the start. A missing topic is to be reported as such, before the transaction times out.
        "topic.metadata.propagation.max.ms": str(int(transaction_timeout_s * 1000 / 4)),
        # Back-to-back transactions meet CONCURRENT_TRANSACTIONS, and the default waits 100 ms for each.
        "retry.backoff.ms": "5",
        "retry.backoff.max.ms": "100",
        "logger": logger,
        "log.connection.close": "true",
        "log_level": str(max(_INFO, int(kafka.get("log_level", _INFO)))),
    }
