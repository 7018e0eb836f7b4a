"""The control topic `_sowstream.control`: workers' notices of held partitions, and operators' orders to resume.

A compacted Kafka topic of one partition. Workers run in the same way without it; but held partitions cannot be seen
from elsewhere, and not be resumed by an order.
"""

from processor.shared_topics.control.hold import REMEDIES, Hold, Resume
from processor.shared_topics.control.report import control_report
from processor.shared_topics.control.thread import ControlThread
from processor.shared_topics.control.topic import ControlEntries, ControlTopic
from processor.wire.control import FORMAT, Failure, Key, Notice, Order

__all__ = [
    "FORMAT",
    "REMEDIES",
    "ControlEntries",
    "ControlThread",
    "ControlTopic",
    "Failure",
    "Hold",
    "Key",
    "Notice",
    "Order",
    "Resume",
    "control_report",
]
