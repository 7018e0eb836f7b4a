"""Streams kept as tables outside Kafka."""
