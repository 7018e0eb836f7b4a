"""Sets the options of Kafka's producer that deduplication needs: no record is dropped while later ones are sent."""

from __future__ import annotations

from typing import Final

from processor.config.kafka_names import KafkaNames
from processor.errors import ConfigurationError
from processor.topics.family import MESSAGE_MAX_BYTES
from spark_integration.options import Options, sink_options

_WRITTEN_AGAIN: Final = "a record that is missing before ones that are written could not be written again"
_OURS: Final = {
    "kafka.enable.idempotence": f"it is always true: {_WRITTEN_AGAIN}",
    "kafka.acks": f"all replicas have what is written: {_WRITTEN_AGAIN}",
    "kafka.delivery.timeout.ms": f"nothing is given up that waits to be sent: {_WRITTEN_AGAIN}",
    "kafka.retries": f"nothing is given up that waits to be sent: {_WRITTEN_AGAIN}",
    "kafka.transactional.id": "Spark's Kafka sink writes without transactions",
}
_SIZE: Final = "kafka.max.request.size"


def publish_options(topic: str, options: Options | None, names: KafkaNames | None = None) -> dict[str, str]:
    """Build the options of Spark's Kafka sink to publish to a family.

    With an idempotent producer, a partition always has the first records of an attempt, without gaps, as long as the
    producer drops no batch: it would still send the batches after it.

    Raises:
        ConfigurationError: as in `sink_options`, or an option that deduplication depends on.
    """
    settings = sink_options(topic, "publish", options, names)
    spelling = {name.lower(): name for name in options or {}}
    for name, reason in _OURS.items():
        if name in spelling:
            raise ConfigurationError(f"option {spelling[name]!r} cannot be given: {reason}; leave it out")
    size = settings.get(_SIZE, "0")
    if not size.isdigit() or int(size) > MESSAGE_MAX_BYTES:
        raise ConfigurationError(
            f"option {_SIZE!r} is {size}; the topic takes records of {MESSAGE_MAX_BYTES} bytes, "
            "and what the producer refuses itself is refused in order"
        )
    return settings | {"kafka.enable.idempotence": "true", "kafka.delivery.timeout.ms": str(2**31 - 1)}
