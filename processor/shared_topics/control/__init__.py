"""The control topic `_sowstream.control`: notices of held partitions, orders to resume, and fences.

A compacted Kafka topic of one partition. Workers run in the same way without it; but held partitions cannot be seen
from elsewhere, and not be resumed by an order.
"""

from processor.shared_topics.control.hold import REMEDIES, Hold, Resume
from processor.shared_topics.control.report import control_report
from processor.shared_topics.control.thread import ControlThread
from processor.shared_topics.control.topic import ControlEntries, ControlTopic, fence_mark
from processor.wire.control import FORMAT, Failure, Fence, Key, Notice, Order

__all__ = [
    "FORMAT",
    "REMEDIES",
    "ControlEntries",
    "ControlThread",
    "ControlTopic",
    "Failure",
    "Fence",
    "Hold",
    "Key",
    "Notice",
    "Order",
    "Resume",
    "control_report",
    "fence_mark",
]
