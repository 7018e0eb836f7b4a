"""The connections of a member to brokers: kafka-python's, on a network thread of their own."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from kafka import errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.wakeup_notifier import WakeupNotifier
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest
from kafka.structs import TopicPartition

from processor.kafka import outage
from processor.kafka.python_client import client_settings

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Coroutine, Mapping

_RECEIVED_BYTES_MAX: Final = 256 * 1024 * 1024
_REQUEST_TIMEOUT_MS: Final = 15_000
_PAUSED_S: Final = 0.02
_SETTINGS: Final[dict[str, Any]] = {
    "receive_message_max_bytes": _RECEIVED_BYTES_MAX,
    "request_timeout_ms": _REQUEST_TIMEOUT_MS,
    # As for our librdkafka clients: seconds of back-off would outlast most restarts of a broker.
    "reconnect_backoff_max_ms": 2_000,
    "socket_connection_setup_timeout_ms": 2_500,
}


class Network:
    """Brokers, leaders and coordinators of one cluster. Coroutines run on its thread; other calls from any thread."""

    def __init__(self, kafka: Mapping[str, str], topic: str) -> None:
        """Connect, in the background.

        Args:
            kafka: librdkafka properties.
            topic: the topic whose leaders are needed.

        Raises:
            ConfigurationError: kafka-python cannot use the properties.
        """
        # Its log lines are raised as errors as well, and it logs every broken connection.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        settings = client_settings(kafka) | _SETTINGS
        self._topic = topic
        self._loop = NetworkSelector(client_id=settings["client_id"])
        self._manager = KafkaConnectionManager(self._loop, **settings)
        self._cluster = self._manager.cluster
        # A topic that was deleted is not to be made again by a question about it.
        self._cluster.config["allow_auto_create_topics"] = False
        self._coordinator: int | None = None
        self._crash: BaseException | None = None

    def start(self, on_leaders: Callable[[], None]) -> None:
        """Start the thread; `on_leaders` is called on it when leaders may have moved."""
        self._cluster.add_listener(lambda _: on_leaders())
        self._loop.start()
        self._cluster.add_topic(self._topic)

    def spawn(self, task: Callable[[], Coroutine[Any, Any, None]]) -> Any:
        """Run a coroutine on the thread; returns its future, which kafka-python's `await` accepts."""
        return self._manager.call_soon(task)

    def run(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine on the thread, and wait for it."""
        self._manager.run(task)

    def notifier(self) -> WakeupNotifier:
        """Something that a coroutine can wait for, and any thread can notify."""
        return WakeupNotifier(self._loop)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._loop.sleep(seconds)

    async def ended(self, future: Any, timeout_s: float) -> None:
        """Wait for the end of a coroutine, but not longer than the time-out; its errors are its own."""
        try:
            await self._manager.wait_for(future, timeout_s * 1000)
        except errors.KafkaError:
            return

    async def connection(self, node: int) -> Any:
        """A connection to a broker that takes requests.

        Raises:
            KafkaError: there is none now.
        """
        connection = self._manager.get_connection(node)
        await connection
        while connection.paused and not connection.closed:
            await self._loop.sleep(_PAUSED_S)  # Throttled by a quota.
        return connection

    async def send(self, connection: Any, request: Any) -> Any:
        """Send a request, and return the answer.

        Raises:
            KafkaError: no answer; whether the broker has received the request is not known.
        """
        answer = await connection.send_request(request)
        outage.reached()
        return answer

    async def to_coordinator(self, group: str, request: Any) -> Any:
        """Send a request to the coordinator of a group.

        Raises:
            KafkaError: no answer.
        """
        if self._coordinator is None:
            self._coordinator = await self._find_coordinator(group)
        try:
            return await self.send(await self.connection(self._coordinator), request)
        except errors.KafkaError:
            self._coordinator = None
            raise

    def forget_coordinator(self) -> None:
        """Ask for the coordinator again, with the next request."""
        self._coordinator = None

    def refresh(self) -> None:
        """Ask for the leaders again."""
        self._cluster.request_update()

    @property
    def crash(self) -> BaseException | None:
        """The defect that ended the thread; None: it runs."""
        return self._crash or self._loop._exception

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The id of the topic; None: it is not known yet."""
        topic_id: uuid.UUID | None = self._cluster.topic_id(self._topic)
        return topic_id

    def leader(self, partition: int) -> int | None:
        """The broker that leads a partition of the topic; None: it is not known yet."""
        node = self._cluster.leader_for_partition(TopicPartition(self._topic, partition))
        return None if node is None or node < 0 else int(node)

    def close(self) -> None:
        """Close the connections, and end the thread."""
        # After a defect the loop takes no more work, and would leave the connections open.
        self._crash, self._loop._exception = self.crash, None
        self._loop.call_soon_threadsafe(self._manager.close)
        self._loop.stop()
        self._loop.close()

    async def _find_coordinator(self, group: str) -> int:
        request = FindCoordinatorRequest(
            key_type=CoordinatorType.GROUP.value, coordinator_keys=[group], min_version=4, max_version=6
        )
        if not self._manager.bootstrapped:
            await self._manager.bootstrap_async()
        answer = await self._manager.send(request)
        coordinator = answer.coordinators[0]
        if coordinator.error_code:
            raise errors.for_code(coordinator.error_code)(coordinator.error_message)
        if self._cluster.broker_metadata(coordinator.node_id) is None:
            self.refresh()
        return int(coordinator.node_id)
