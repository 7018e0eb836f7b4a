"""Keeps streams as tables outside Kafka."""
