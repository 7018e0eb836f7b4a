"""A real Apache Kafka for a laptop and for tests: fetched once, started in seconds, gone without a trace."""

from processor.tools.broker.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
