"""Finds the codec of a message type by its entry point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from processor.codec.contract import Codec, CodecOptions
from processor.config.kafka_names import KafkaNames
from processor.entry_points import find_installed, installed_names, load_installed
from processor.errors import ConfigurationError

if TYPE_CHECKING:
    from processor.config import Config, TopicConfig

GROUP = "sowstream.codecs"
"""The entry-point group: the name is the message type, the object a class or function that makes its `Codec`."""


def codec_names() -> list[str]:
    """The message types that are installed, sorted."""
    return installed_names(GROUP)


def load_codec(message_type: str, options: CodecOptions | None = None) -> Codec:
    """Make the codec of a message type.

    Args:
        message_type: its name in the entry-point group, such as `json`.
        options: the topic's settings for it; None: the defaults.

    Raises:
        ConfigurationError: there is no such message type, it cannot be imported, or it refuses an option.
    """
    noun = "message type"
    make = load_installed(find_installed(GROUP, noun, message_type), noun)
    return cast("Codec", make(options or CodecOptions()))


def codec_options(
    topic: TopicConfig,
    *,
    name: str,
    registry: Mapping[str, str] | None = None,
    registry_wait_s: float | None = None,
    reads_only: bool = False,
    names: KafkaNames | None = None,
) -> CodecOptions:
    """The settings of a topic for its message type.

    Args:
        topic: the settings.
        name: the family's name.
        registry: settings of the schema registry's client; None: there is none.
        registry_wait_s: how long reading a message may wait for it; None: until there is an answer.
        reads_only: whether nothing will be written.
        names: the Kafka names of all families; None: those without a prefix.
    """
    return CodecOptions(
        max_depth=topic.max_depth,
        topic=name,
        schema=topic.message_schema,
        registry=registry or {},
        registry_wait_s=registry_wait_s,
        separator=topic.separator,
        parts=topic.parts,
        reads_only=reads_only,
        names=names or KafkaNames(),
    )


def codec_of(config: Config, name: str, *, registry_wait_s: float | None = None) -> Codec:
    """Make the codec of a configured topic; a copy of another one has the other's.

    Args:
        config: the settings.
        name: the topic.
        registry_wait_s: how long reading a message may wait for the schema registry; None: until there is an answer.

    Raises:
        ConfigurationError: as `load_codec`; no such topic.
        Stop: the schema registry does not answer.
    """
    topic, root = config.topic(name), config.root(name)
    registry = config.schema_registry
    options = codec_options(
        topic, name=root, registry=registry, registry_wait_s=registry_wait_s, names=config.kafka_names
    )
    try:
        return load_codec(topic.message_type, options)
    except ConfigurationError as error:
        # Some say it themselves.
        told = str(error)
        raise ConfigurationError(told if repr(root) in told else f"topic {root!r}: {told}") from error


def not_installed(message_type: str, error: ImportError) -> ConfigurationError:
    """The error of a message type that cannot be imported, with the command that mends it."""
    return ConfigurationError(
        f"message type {message_type!r} needs a package that is not installed ({error}); "
        "install it: pip install 'sowstream[formats]'"
    )
