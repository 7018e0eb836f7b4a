"""The topic directory: a compacted Kafka topic that describes each topic, so that readers need no settings file.

`sowstream topics apply` writes the descriptions. Clients that have only an address read them, and workers compare them
with their own settings when they start.
"""

from processor.topic_directory.compare import Difference, contradictions, differences
from processor.topic_directory.configured import described_topics, with_described_topics
from processor.topic_directory.description import FORMAT, Description, describe
from processor.topic_directory.directory import Entries, TopicDirectory
from processor.topic_directory.report import check_at_start, report
from processor.topic_directory.revise import Revision, revise

__all__ = [
    "FORMAT",
    "Description",
    "Difference",
    "Entries",
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
