"""The Python client: `from processor.client import Client`.

`client` is what a user sees; `publishing` and `outbox` send; `acknowledged` numbers what wants `acks`, keeps what is
`outstanding` and has it settled by the `ack_reader`; `reading` opens a `subscription`, which reads a `cut` of
a topic and tells of `updates` in `message`s, wrapped by an `envelope`, as the `options` say.
"""

from processor.client.acks import Ack
from processor.client.client import Client
from processor.subscribe.message import Message
from processor.client.subscription import Subscription

__all__ = ["Ack", "Client", "Message", "Subscription"]
