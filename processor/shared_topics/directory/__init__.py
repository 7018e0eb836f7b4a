"""The topic directory: a compacted Kafka topic that describes each topic, so that readers need no settings file.

`sowstream topics apply` writes the descriptions. Clients that have only an address read them, and workers compare them
with their own settings when they start.
"""

from processor.shared_topics.directory.compare import Difference, contradictions, differences
from processor.shared_topics.directory.configured import described_topics, with_described_topics
from processor.shared_topics.directory.directory import DirectoryEntries, TopicDirectory
from processor.shared_topics.directory.report import check_at_start, report
from processor.shared_topics.directory.revise import Revision, revise
from processor.wire.topic_description import FORMAT, Description, describe

__all__ = [
    "FORMAT",
    "Description",
    "Difference",
    "DirectoryEntries",
    "Revision",
    "TopicDirectory",
    "check_at_start",
    "contradictions",
    "describe",
    "described_topics",
    "differences",
    "report",
    "revise",
    "with_described_topics",
]
