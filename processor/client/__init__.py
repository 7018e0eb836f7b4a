"""The Python client: `from processor.client import Client`.

`client` is the public class. `publish/` sends commands: `command_sender` builds them by an `outbox`; `acked_publisher`
numbers those with acks, and `ack_reader` settles the `pending_acks`. `subscribe/` has the calls that read: `opening`
opens a `subscription`, or a `connection` with several; each is a `stream` that a feed fills. `feeds/` reads Kafka: a
feed passes the records before and after a `snapshot_boundary` to the subscription engine, and returns its messages.
`views/` has the records that the engine compares with, `growing_view` in memory and `stored_view` on disk, and `view`,
the mapping that users get. `queue/` consumes queues over SOW topics, as a member of a share group. `async_client`
has the calls for event loops, `frames` makes tables of records.
"""

from typing import TYPE_CHECKING

from processor.client.client import Client
from processor.client.subscribe.subscription import ClientConnection, Subscription
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
    "View",
    "ViewChange",
]

# Most clients have neither an event loop nor queues, and start sooner without them.
_LATE = {
    "AsyncClient": "processor.client.async_client",
    "Queue": "processor.queues",
    "QueueMessage": "processor.queues",
    "QueueMetrics": "processor.queues",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a class of `_LATE` at its first use."""
        if name in _LATE:
            from importlib import import_module  # noqa: PLC0415

            return getattr(import_module(_LATE[name]), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
