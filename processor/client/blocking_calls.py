"""The calls of a client that wait for Kafka, which `AsyncClient` runs on another thread.

A file of its own: a client that is not asynchronous does not import `async_client`.
"""

from __future__ import annotations

from processor.client.publish.publish_calls import PublishCalls
from processor.client.subscribe.subscribe_calls import SubscribeCalls


class BlockingCalls(PublishCalls, SubscribeCalls):
    """The calls of a client that wait for Kafka."""
