"""The subscription engine: delivers the updates of one topic to many subscribers. It uses neither Kafka nor sockets.

README.md beside this file has the picture::

    topic = Topic("orders", codec, KeyFields(("/id",)))
    engine = Engine(topic, MemoryRecords())
    desk = engine.connect()
    desk.subscribe(SubscriptionSpec(topic, "/qty > 10", Options(oof=True), snapshot=True, live=True, delta=True))
    engine.take(partition, records, now_ms)
    desk.take(100)  # messages
"""

from processor.subscriptions.engine import Engine
from processor.subscriptions.engine_connection import Connection
from processor.subscriptions.engine_subscription import EngineSubscription
from processor.subscriptions.request.subscribe_options import Options, parse_options
from processor.subscriptions.request.subscribed_topic import MemoryRecords, NoRecords, RecordView, Topic
from processor.subscriptions.request.subscriber_message import Message
from processor.subscriptions.request.subscription_spec import SubscriptionSpec

__all__ = [
    "Connection",
    "Engine",
    "EngineSubscription",
    "MemoryRecords",
    "Message",
    "NoRecords",
    "Options",
    "RecordView",
    "SubscriptionSpec",
    "Topic",
    "parse_options",
]
