"""Sowstream: the state of the world of keyed records on Kafka."""

__version__ = "0.1.0"
