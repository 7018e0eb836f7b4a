"""The Python client: `from processor.client import Client`.

`client` is what a user sees; `publishing` and `outbox` send; `reading` opens a `subscription`, which reads a `cut` of
a topic and tells of `updates` in `message`s, wrapped by an `envelope`, as the `options` say.
"""

from processor.client.client import Client
from processor.client.message import Message
from processor.client.subscription import Subscription

__all__ = ["Client", "Message", "Subscription"]
