"""The connection of an administration client: its first request, and its replacement when Kafka stays silent."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from processor.errors import ConfigurationError, Stop
from processor.kafka import errors as kafka_errors
from processor.kafka import outage, properties
from processor.kafka.admin.questions import in_time
from processor.kafka.background_calls import call_in_background
from processor.kafka.connection_faults import error_of
from processor.kafka.connection_probe import FaultLog
from processor.kafka.outage import Renewal, leave

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from confluent_kafka.admin._metadata import ClusterMetadata

CONNECT_TIMEOUT_S: Final = 15.0
"""Longest wait for a broker, unless the caller has another limit."""
_TRIES_S: Final = (0.5, 1.5)
"""The first tries; a refused login is known after one of them. Metadata of a large cluster may take longer."""
TRY_S: Final = 4.0
"""Longest time for one try: the broker that it was sent to may be dead."""
TIMEOUT_S: Final = 15.0
"""Longest wait for the answer to a request, once a broker has answered one."""
LOOK_TIMEOUT_S: Final = 2.0
"""The same for one about brokers and leaders alone."""
PAUSE_S: Final = 0.05
"""Time between two requests: listing all topics is expensive in a large cluster."""


class Cluster(NamedTuple):
    """The brokers and topics of a cluster."""

    brokers: list[str]
    """The address of each broker, `host:port`."""
    topics: dict[str, int]
    """Each topic's number of partitions; topics that this user may not describe are missing."""


def check_files(kafka: Mapping[str, str]) -> None:
    """Check that the files of the properties exist: librdkafka's error does not name them.

    Raises:
        ConfigurationError: one does not exist, or must not be read.
    """
    for name, value in kafka.items():
        if not name.endswith(".location") or not value or value == "probe":
            continue
        try:
            if Path(value).is_file():
                Path(value).open("rb").close()
            elif not Path(value).exists():
                raise ConfigurationError(f"kafka.{name}: there is no file {value}")
        except OSError as error:
            raise ConfigurationError(f"kafka.{name}: {value}: {error.strerror}") from None


class AdminConnection:
    """A client that is replaced when a request stays unanswered, and the reasons why no broker answers it."""

    def __init__(
        self, kafka: Mapping[str, str], connect_timeout_s: float = CONNECT_TIMEOUT_S, *, awaits_names: bool = False
    ) -> None:
        """Create the client. Every process does this first, so that wrong properties are reported here.

        Args:
            kafka: the user's properties.
            connect_timeout_s: the longest wait for a broker: of `cluster`, and of the first request without a limit of
                its own.
            awaits_names: whether that waits for a host's name to resolve, too, as services do that start together.

        Raises:
            ConfigurationError: librdkafka does not take a property, or a file of theirs does not exist.
        """
        self._bootstrap = kafka.get("bootstrap.servers", "")
        self._timeout_s = connect_timeout_s
        check_files(kafka)
        common = properties.common(kafka)
        self._faults = FaultLog(common, properties.log, awaits_names=awaits_names)
        self._properties = self._faults.listening(properties.admin(kafka))
        try:
            self._client = AdminClient(self._properties)
        except KafkaException as error:
            raise ConfigurationError(f"the section `kafka` of the settings: {kafka_errors.of(error).str()}") from None
        self._looking: Future[None] | None = None  # The last call of `_look`.
        self.renewal = Renewal(self.refresh, self._renew)  # Replaces the client when a request stays unanswered.
        self.looked_s = 0.0  # When a broker last answered `refresh`, by the monotonic clock.
        self._is_connected = False  # Whether a broker has answered `cluster`.

    def cluster(self, timeout_s: float | None = None) -> Cluster:
        """Fetch the brokers and topics of the cluster, within the client's time limit or another one.

        Raises:
            ConfigurationError: the login or the connection is refused; the text has the reason and the remedy.
            BrokerUnavailable: no answer in time; the text has the reason.
        """
        doing = f"looking at the cluster at {self._bootstrap}"
        try:
            metadata = self._metadata(self._timeout_s if timeout_s is None else timeout_s)
        except KafkaException as error:
            raise self._failure(error, doing) from error
        self._faults.clear()
        outage.reached()
        self._is_connected = True
        return Cluster(
            [f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()],
            {name: len(topic.partitions) for name, topic in metadata.topics.items()},
        )

    def _metadata(self, timeout_s: float) -> ClusterMetadata:
        """Ask any broker; a long wait is logged, and a fault that waiting does not mend ends it early."""
        deadline_s, tries = time.monotonic() + timeout_s, iter(_TRIES_S)
        while True:
            left_s = deadline_s - time.monotonic()
            try_s = next(tries, TRY_S)
            try:
                return self._client.list_topics(timeout=max(0.01, min(try_s, left_s)))
            except KafkaException as error:
                self._client.poll(0)  # librdkafka delivers its log lines here only.
                is_unreachable = kafka_errors.is_unreachable(error)
                if not is_unreachable or self._faults.ends_the_wait or time.monotonic() >= deadline_s:
                    raise
                if try_s >= _TRIES_S[-1]:
                    # librdkafka reports no web server and no port with TLS. On a busy machine one look may be short.
                    reasons = self._faults.look_closer()
                    if self._faults.ends_the_wait:
                        raise
                    if try_s == _TRIES_S[-1] and not outage.is_away():  # During an outage the log has a line a minute.
                        properties.log.warning("waiting for Kafka, up to %g s: %s", timeout_s, reasons)

    def _failure(self, error: KafkaException, doing: str) -> Stop:
        """The error of a request that no broker answered."""
        if not kafka_errors.is_unreachable(error):
            return kafka_errors.stop(error, doing)
        explained = self._faults.explained()
        if not any(fault.is_final for fault in explained):
            outage.unreachable(doing)
        return error_of(explained, doing)

    def _limit_s(self, timeout_s: float | None = None) -> float:
        """The time limit of a request: that of its caller, or the usual one once a broker has answered.

        Raises:
            ConfigurationError, BrokerUnavailable: as `cluster`.
        """
        if timeout_s is not None:
            return timeout_s
        if not self._is_connected:
            self.cluster()
        return TIMEOUT_S

    def refresh(self) -> None:
        """Have the client refresh its leaders and coordinators; returns at once."""
        if self._looking is None or self._looking.done():
            self._looking = call_in_background("looking for brokers", self._look)

    def _look(self) -> None:
        try:
            self._client.list_topics(timeout=LOOK_TIMEOUT_S)
        except KafkaException as error:
            if kafka_errors.is_unreachable(error):
                outage.unreachable("asking for brokers and leaders")
        else:
            self.looked_s = time.monotonic()
            outage.reached()

    def _renew(self) -> None:
        """Replace the client: the present one may wait for a broker that is dead."""
        properties.log.warning("no answer from Kafka; connecting anew")
        former, self._client = self._client, AdminClient(self._properties)
        leave(former)

    def _ask(
        self, question: str, ask: Callable[[Sequence[str], float], Mapping[str, Future[Any]]], names: Sequence[str],
        timeout_s: float,
    ) -> dict[str, Any]:  # fmt: skip
        """Send a request about topics until each has an answer, and wait for the answers.

        Args:
            question: the request, as it is called in log lines.
            ask: sends the request once, with this time limit in seconds.
            names: the topics.
            timeout_s: longest wait.

        Returns:
            The answer, or Kafka's error, by topic.
        """
        deadline_s = time.monotonic() + timeout_s
        answers: dict[str, Any] = {}
        while left := [name for name in names if name not in answers]:
            try_s = max(PAUSE_S, min(TRY_S, deadline_s - time.monotonic()))
            for name, future in ask(left, try_s).items():
                answer = in_time(future, try_s)
                if not isinstance(answer, KafkaException) or not kafka_errors.is_unanswered(answer):
                    self.renewal.answered(f"{question} {name}")
                    outage.reached()
                    answers[name] = answer
                else:
                    self.renewal.unanswered(f"{question} {name}")
                    if time.monotonic() >= deadline_s:
                        answers[name] = answer
            if len(answers) < len(names):
                time.sleep(PAUSE_S)
        return answers
