"""The options of a streaming merge: one set for the source, of which the sink gets those of the Kafka client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError
from processor.topics.family import DLQ_HEADERS_BYTES, MESSAGE_MAX_BYTES
from spark_integration.options import Options, sink_options, source_options

OFFSETS_PER_TRIGGER: Final = 100_000
"""Default of `maxOffsetsPerTrigger`: the limit of records in a micro-batch, which are in memory."""

_STARTS: Final = ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp")

_MUST_BE: Final = {
    "kafka.acks": ("all", "-1"),
    "kafka.enable.idempotence": ("true",),
}
_REFUSED: Final = {
    "kafka.transactional.id": "Spark's sink has no transactions",
}


def read_options(topic: str, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Build the options of the source.

    Raises:
        ConfigurationError: see `source_options`.
    """
    checked = source_options(topic, "publish", options, names)
    if "maxoffsetspertrigger" not in {name.lower() for name in checked}:
        checked["maxOffsetsPerTrigger"] = str(OFFSETS_PER_TRIGGER)
    return checked


def write_options(topic: str, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Build the options of the sink: rows name their topic, keep their order, and are acknowledged by all replicas.

    Raises:
        ConfigurationError: an option would break a guarantee.
    """
    checked = {name.lower(): value for name, value in sink_options(topic, "sow", options, names).items()}
    for name, values in _MUST_BE.items():
        if checked.get(name, values[0]).lower() not in values:
            raise ConfigurationError(
                f"option {name!r} is {checked[name]!r}: records could be lost or change their order; leave it out"
            )
    for name, why in _REFUSED.items():
        if name in checked:
            raise ConfigurationError(f"option {name!r} cannot be given: {why}; leave it out")
    return {
        # The default of Java's client is below the limit of a record.
        "kafka.max.request.size": str(MESSAGE_MAX_BYTES + DLQ_HEADERS_BYTES),
        **kafka_options(checked),
        **{name: values[0] for name, values in _MUST_BE.items()},
    }


def kafka_options(options: Mapping[str, str]) -> dict[str, str]:
    """Select the options of the Kafka client."""
    return {name: value for name, value in options.items() if name.lower().startswith("kafka.")}


def has_start(options: Options | None) -> bool:
    """Return whether an option sets the start of the input."""
    return any(name.lower() in _STARTS for name in options or ())
