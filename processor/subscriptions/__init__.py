"""The subscription engine: what each of many subscribers is told of one topic. It knows nothing of Kafka or sockets.

README.md beside this file has the picture::

    engine = Engine(Topic("orders", codec, KeyFields(("/id",))), MemoryView())
    desk = engine.connect()
    desk.subscribe(Request(engine.topic, "/qty > 10", Options(oof=True), snapshot=True, live=True, delta=True))
    engine.take(partition, records, now_ms)
    desk.take(100)  # messages
"""

from processor.subscriptions.connection import Connection
from processor.subscriptions.engine import Engine
from processor.subscriptions.message import Message
from processor.subscriptions.message_builder import Topic
from processor.subscriptions.options import Options, parse_options
from processor.subscriptions.record_view import MemoryView, NoView, View
from processor.subscriptions.subscription import Request, Subscription

__all__ = [
    "Connection",
    "Engine",
    "MemoryView",
    "Message",
    "NoView",
    "Options",
    "Request",
    "Subscription",
    "Topic",
    "View",
    "parse_options",
]
