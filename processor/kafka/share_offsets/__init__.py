"""Asks brokers where share groups stand (KIP-932, DescribeShareGroupOffsets), through kafka-python.

Neither librdkafka nor kafka-python has a call for it. kafka-python makes its messages from Kafka's message definitions,
and takes further ones: those of this request are the two JSON files here.
"""

from processor.kafka.share_offsets.share_offsets import SharePosition, share_positions

__all__ = ["SharePosition", "share_positions"]
