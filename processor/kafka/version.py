"""The version of librdkafka, which is not that of the Python package."""

from __future__ import annotations

import confluent_kafka


def librdkafka_version() -> str:
    """As librdkafka says it: `2.16.1`."""
    return confluent_kafka.libversion()[0]
