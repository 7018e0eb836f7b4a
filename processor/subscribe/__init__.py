"""The subscription engine: what each of many subscribers is told of one topic. It knows nothing of Kafka or sockets.

README.md beside this file has the picture::

    engine = Engine(Topic("orders", codec, KeyFields(("/id",))), MemoryView())
    desk = engine.connect()
    desk.subscribe(Request(engine.topic, "/qty > 10", Options(oof=True), snapshot=True, live=True, delta=True))
    engine.take(partition, records, now_ms)
    desk.take(100)  # messages
"""

from processor.subscribe.connection import Connection
from processor.subscribe.engine import Engine
from processor.subscribe.message import Message
from processor.subscribe.options import Options, parse_options
from processor.subscribe.subscription import Request, Subscription
from processor.subscribe.teller import Topic
from processor.subscribe.view import MemoryView, NoView, View

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
