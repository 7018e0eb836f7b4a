"""The options of a streaming merge: one set, of which the source has all and the sink what is Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError
from processor.topics.family import DLQ_HEADERS_BYTES, MESSAGE_MAX_BYTES
from spark_integration.options import Options, sink_options, source_options

OFFSETS_PER_TRIGGER: Final = 100_000
"""How many records a micro-batch takes at most, unless `maxOffsetsPerTrigger` says otherwise: they are in memory."""

_STARTS: Final = ("startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp")

_MUST_BE: Final = {
    "kafka.acks": ("all", "-1"),
    "kafka.enable.idempotence": ("true",),
}
_REFUSED: Final = {
    "kafka.transactional.id": "Spark's sink has no transactions",
}


def read_options(topic: str, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Options of the source.

    Raises:
        ConfigurationError: see `source_options`.
    """
    given = source_options(topic, "publish", options, names)
    if "maxoffsetspertrigger" not in {name.lower() for name in given}:
        given["maxOffsetsPerTrigger"] = str(OFFSETS_PER_TRIGGER)
    return given


def write_options(topic: str, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Options of the sink: a topic for each row, nothing reordered, nothing acknowledged by one broker alone.

    Raises:
        ConfigurationError: an option would break that.
    """
    given = {name.lower(): value for name, value in sink_options(topic, "sow", options, names).items()}
    for name, values in _MUST_BE.items():
        if given.get(name, values[0]).lower() not in values:
            raise ConfigurationError(
                f"option {name!r} is {given[name]!r}: records could be lost or change their order; leave it out"
            )
    for name, why in _REFUSED.items():
        if name in given:
            raise ConfigurationError(f"option {name!r} cannot be given: {why}; leave it out")
    return {
        # Java's own limit is less than a record may have.
        "kafka.max.request.size": str(MESSAGE_MAX_BYTES + DLQ_HEADERS_BYTES),
        **kafka_options(given),
        **{name: values[0] for name, values in _MUST_BE.items()},
    }


def kafka_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those that go to the Kafka client."""
    return {name: value for name, value in options.items() if name.lower().startswith("kafka.")}


def says_where_to_begin(options: Options | None) -> bool:
    """Whether an option says where the input begins."""
    return any(name.lower() in _STARTS for name in options or ())
