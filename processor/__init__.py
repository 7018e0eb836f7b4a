"""Sowstream: the state of the world of keyed records on Kafka."""

from importlib.metadata import version

__version__ = version("sowstream")
"""The version of the installed package, which stands in pyproject.toml."""
