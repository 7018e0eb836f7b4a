"""The control topic `_sowstream.control`: workers' notices of what is held, and operators' orders to go on.

A compacted Kafka topic of one partition. Without it workers run as they do with it; what is held cannot be seen from
elsewhere, and nobody can order it to go on.
"""

from processor.shared_topics.control.hold import REMEDIES, Hold, Resume
from processor.shared_topics.control.report import control_report
from processor.shared_topics.control.thread import ControlThread
from processor.shared_topics.control.topic import ControlTopic, Entries
from processor.wire.control import FORMAT, Failure, Key, Notice, Order

__all__ = [
    "FORMAT",
    "REMEDIES",
    "ControlThread",
    "ControlTopic",
    "Entries",
    "Failure",
    "Hold",
    "Key",
    "Notice",
    "Order",
    "Resume",
    "control_report",
]
