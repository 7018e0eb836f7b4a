"""A real Apache Kafka for a laptop and for tests: downloaded once, started in seconds, removed without a trace."""

from processor.tools.broker.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
