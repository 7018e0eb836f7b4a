"""Parses the options of `spark.read.format("sow")`."""

from __future__ import annotations

import datetime as dt
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast, get_args

from processor.errors import ConfigurationError
from processor.filter import compile_filter
from spark_integration.foundation.kafka_options import PREFIX, SERVERS, KafkaOptions, kafka_property
from spark_integration.foundation.options import TOPIC_PREFIX, is_prefix
from spark_integration.foundation.settings import TopicSettings, topic_settings
from spark_integration.read.as_of import At
from spark_integration.read.metadata_columns import Metadata
from spark_integration.read.misfit import OnMisfit
from spark_integration.read.table_part import key_texts

_REPEATED: Final = "option."
_MAX_BYTES: Final = 512 * 1024 * 1024

_KNOWN: Final = (
    "topic", "schema", "filter", "config", "at", "endingOffsets", "allowCompacted", "maxBytesPerPartition",
    "metadata", "keys", "onMisfit", "pushFilters", TOPIC_PREFIX,
)  # fmt: skip

_PATH: Final = "path"
"""The option that `load("orders")` sets: another name of `topic`."""

_TO_WRITE: Final = (
    "command", "key", "columns", "mask", "removed", "deleted", "nulls", "orderBy", "client",
)  # fmt: skip
"""Options for writing; a table in a catalog has them next to those for reading."""

_SPARKS: Final = frozenset(("provider", "owner", "serialization.format"))
"""Properties that Spark's catalog adds to the options of a table, each of which it repeats as `option.<name>`."""

_OURS: Final = {
    "isolation.level": "it is always read_committed: aborted records never happened",
    "group.id": "no group is joined",
    "auto.offset.reset": "a table is read from the beginning",
    "enable.auto.commit": "nothing is committed",
    "enable.partition.eof": "it is how the end of a partition is told",
}


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options."""

    settings: TopicSettings
    """The settings of the topic."""
    schema: str | None
    """The columns of the record as DDL; None: the columns of the topic's schema, for JSON one text column."""
    filter: str | None
    """A filter for the records; None: all records."""
    at: At | None
    """The end of the read; None: everything committed now."""
    allow_compacted: bool
    """True if `at` may be so early that compaction may have removed records."""
    max_bytes_per_partition: int
    """Memory limit for the latest records of a partition: keys, values and headers."""
    metadata: Metadata
    """The place of the metadata columns."""
    on_misfit: OnMisfit
    """The treatment of a record that does not fit its columns."""
    keys: tuple[str, ...] | None
    """The texts of the keys to read; None: all keys."""
    pushes_filters: bool
    """True if Spark may pass the conditions of a query, as Spark 4.1 and later do where it is configured."""
    has_config: bool
    """True if the options name the topic's settings."""
    kafka: Mapping[str, str] = field(repr=False)
    """librdkafka properties."""


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options; the case of names does not matter.

    Raises:
        ConfigurationError: an option is unknown, missing, or cannot be used.
    """
    return parse_options(options)[1]


def parse_options(options: Mapping[str, str], *, needs_sow: bool = True) -> tuple[dict[str, str], SourceOptions]:
    """Parse the options for reading, and sort those for writing.

    Args:
        options: the options as Spark passes them.
        needs_sow: whether records are read.

    Returns:
        All options that are not for Kafka, in the right spelling; and those for reading.

    Raises:
        ConfigurationError: an option is unknown, missing, or cannot be used.
    """
    spelling = {name.lower(): name for name in (*_KNOWN, *_TO_WRITE, _PATH)}
    own: dict[str, str] = {}
    for name, text in options.items():
        if (kafka_name := kafka_property(name)) is not None:
            if kafka_name in _OURS:
                raise ConfigurationError(f"option {name!r} cannot be given: {_OURS[kafka_name]}; leave it out")
        elif is_prefix(name):
            own[TOPIC_PREFIX] = text
        elif name.lower() in spelling:
            own[spelling[name.lower()]] = text
        elif is_sparks(name):
            continue
        else:
            raise ConfigurationError(_unknown(name))
    topic = own.setdefault("topic", own.get(_PATH, ""))
    if _PATH in own and own.pop(_PATH) != topic:
        raise ConfigurationError(f"option 'topic' is {topic!r}, and load() was given another name; give it once")
    if not topic or "." in topic:
        raise ConfigurationError(
            f"option 'topic' is {topic!r}; give the name of a family without its role, such as 'orders': "
            "'.sow' is added"
        )
    settings = topic_settings(topic, own.get("config"), options=own, needs_sow=needs_sow)
    given = KafkaOptions.of(options, settings.kafka)
    if not given.has_servers:
        raise ConfigurationError("no option 'kafka.bootstrap.servers': say where Kafka is, such as 'localhost:9092'")
    if "filter" in own:
        compile_filter(own["filter"])
    if own.get("schema", "").strip().lower() == "infer":
        raise ConfigurationError("option 'schema' is 'infer'; give DDL here, or use read_sow, which can infer one")
    if own.get("metadata", "").lower() == "none" and own.get("onMisfit", "").lower() == "column":
        raise ConfigurationError(
            "options 'metadata' 'none' and 'onMisfit' 'column': a misfit is metadata; leave one out"
        )
    return own, SourceOptions(
        settings,
        own.get("schema"),
        own.get("filter"),
        _at(own, settings.kafka_topic("sow")),
        _flag("allowCompacted", own.get("allowCompacted", "false")),
        _bytes("maxBytesPerPartition", own.get("maxBytesPerPartition", str(_MAX_BYTES))),
        _metadata(own.get("metadata", "struct").lower()),
        _on_misfit(own.get("onMisfit", "fail").lower()),
        _keys(own.get("keys")),
        _flag("pushFilters", own.get("pushFilters", "false")),
        "config" in own,
        given.librdkafka(tuned=True),
    )


def is_sparks(name: str) -> bool:
    """Return whether Spark's catalog adds this option, and not the user."""
    return name.lower() in _SPARKS or name.lower().startswith(_REPEATED)


def _unknown(name: str) -> str:
    names = {known.lower(): known for known in (*_KNOWN, PREFIX + SERVERS)}
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {names[close[0]]!r}?" if close else f"known: {', '.join(_KNOWN)}, and kafka.*"
    return f"there is no option {name!r}; {hint}"


def _at(options: Mapping[str, str], kafka_topic: str) -> At | None:
    """The end of the read, from option `at` or `endingOffsets`."""
    moment, offsets = options.get("at"), options.get("endingOffsets")
    if moment is not None and offsets is not None:
        raise ConfigurationError("options 'at' and 'endingOffsets' both say where the table ends; give one of them")
    if moment is not None:
        try:
            return dt.datetime.fromisoformat(moment)
        except ValueError:
            raise ConfigurationError(
                f"option 'at' is {moment!r}; give a moment as ISO 8601, such as '2026-01-31T12:00:00+00:00'"
            ) from None
    if offsets is None or offsets == "latest":
        return None
    try:
        (name, ends), *more = json.loads(offsets).items()
        if name != kafka_topic or more:
            raise ValueError(name)
        return {int(partition): int(end) for partition, end in ends.items()}
    except (ValueError, AttributeError, TypeError):
        raise ConfigurationError(
            f"option 'endingOffsets' is {offsets!r}; give 'latest', or the offset after the last one of each "
            f'partition: \'{{"{kafka_topic}": {{"0": 1200, "1": 1187}}}}\''
        ) from None


def _metadata(text: str) -> Metadata:
    if text not in get_args(Metadata):
        raise ConfigurationError(f"option 'metadata' is {text!r}; give 'struct', 'flat' or 'none'")
    return cast("Metadata", text)


def _on_misfit(text: str) -> OnMisfit:
    if text not in get_args(OnMisfit):
        raise ConfigurationError(f"option 'onMisfit' is {text!r}; give 'fail' or 'column'")
    return cast("OnMisfit", text)


def _keys(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    try:
        keys = json.loads(text)
    except ValueError:
        keys = None
    if not isinstance(keys, list):
        raise ConfigurationError(
            f"option 'keys' is {text!r:.100}; give a JSON array of keys, such as '[7, 8]' or '[[\"a\", 7]]'"
        )
    return tuple(key_texts(keys))


def _flag(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"option {option!r} is {text!r}; give 'true' or 'false'")
    return text.lower() == "true"


def _bytes(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ConfigurationError(f"option {option!r} is {text!r}; give a number of bytes, such as '268435456'")
    return int(text)
