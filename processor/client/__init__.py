"""The Python client: `from sowstream import Client`.

`client` is the public class. `publish/` sends commands: `command_sender` builds them by an `outbox`; `acked_publisher`
numbers those with acks, and settles the `pending_acks`; `publish_many` sends many. `subscribe/` has the calls that
read: `opening` opens a `subscription`, or a connection with several; each is a `stream` that a feed fills. `view` is a
mapping, kept by a subscription, and `frames` makes tables of records. `feeds/` reads Kafka: an `engine_feed` passes the
records before and after a `snapshot_boundary` to the subscription engine, and returns its messages; the records that
the engine compares with are in a `growing_view` in memory or a `stored_view` on disk. `gateway/` has the same calls
over a gateway. `async_client` has the calls for event loops. Consumers of queues are in `processor.queues`.

Modules import in one direction: `client`, `gateway/`, `subscribe/` and `publish/`, `feeds/`.
"""

from typing import TYPE_CHECKING

from processor.client.client import Client
from processor.client.subscribe.opener import ClientConnection, TopicInfo
from processor.client.subscribe.subscription import Subscription
from processor.client.subscribe.typed_view import TypedChange, TypedView
from processor.client.subscribe.view import View, ViewChange
from processor.subscriptions.request.subscriber_message import Message
from processor.wire.ack import Ack

if TYPE_CHECKING:
    from processor.client.async_client import AsyncClient
    from processor.queues.consumer import Queue, QueueMetrics
    from processor.queues.queue_message import QueueMessage

__all__ = [
    "Ack",
    "AsyncClient",
    "Client",
    "ClientConnection",
    "Message",
    "Queue",
    "QueueMessage",
    "QueueMetrics",
    "Subscription",
    "TopicInfo",
    "TypedChange",
    "TypedView",
    "View",
    "ViewChange",
]

# Most clients have neither an event loop nor queues, and start sooner without them.
_LATE = {
    "AsyncClient": "processor.client.async_client",
    "Queue": "processor.queues.consumer",
    "QueueMessage": "processor.queues.queue_message",
    "QueueMetrics": "processor.queues.consumer",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a class of `_LATE` at its first use."""
        if name in _LATE:
            from importlib import import_module  # noqa: PLC0415

            return getattr(import_module(_LATE[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
