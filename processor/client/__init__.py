"""The Python client: `from processor.client import Client`.

`client` is what a user sees, `subscribing` its calls that read. `publishing` and `outbox` send; `acknowledged` numbers
what wants `acks`, keeps what is `outstanding` and has it settled by the `ack_reader`. `reading` opens a `subscription`,
or a `connection` with several: each is a `stream` that is filled by a `feed`. The feed reads a `cut` of a topic into
the subscription engine, which knows the records by a view, `growing_view` or `stored_view`. A `view` is what users have
of all that.
"""

from processor.client.client import Client
from processor.client.subscribe.connection import ClientConnection
from processor.client.subscribe.subscription import Subscription
from processor.client.views.view import View, ViewChange
from processor.subscriptions.message import Message
from processor.wire.ack import Ack

__all__ = ["Ack", "Client", "ClientConnection", "Message", "Subscription", "View", "ViewChange"]
