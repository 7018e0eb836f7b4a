"""Decides how a view with groups aggregates where its settings do not: as it was built, or by its definition.

A view that was built one way cannot be read the other way, and the rule for new views may change from version to
version. So the way is noted with the rows: the fingerprint of the definition, which each partition of a stage has among
its marks since its first transaction, is that of one way or of the other. No other place would do as well: the topic
directory is optional and written by `topics apply` alone, perhaps of another version than the workers, and versions
that do not know a note there would not heed it, while all of them refuse a fingerprint that is not theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from processor.config import ViewConfig
from processor.config.derived_topics import SPLIT
from processor.hosting.plugins import installed, plugin_of
from processor.installation.configured_pipelines import first_stage
from processor.kafka.admin.admin import Admin
from processor.kafka.clients.log_reader import BOUNDED_FETCH_WAIT_MS, LogReader, read_up_to
from processor.values.key_text import KEY_VERSION
from processor.wire.view_parts import AWAY_WORD, DEFINITION_MARK, fingerprint

if TYPE_CHECKING:
    from processor.config import Config
    from processor.hosting.pipeline import Pipeline

log = structlog.stdlib.get_logger("sowstream.views")

_TIMEOUT_S: Final = 10.0


def with_aggregation(config: Config, pipeline: Pipeline) -> Pipeline:
    """Return a stage of a view with groups as it is to run; every other pipeline as it is.

    The settings decide it if they say it, then the marks of the view's stages, and for a new view its definition.

    Args:
        config: the settings.
        pipeline: the pipeline.

    Raises:
        BrokerUnavailable: no answer in time.
        Stop: Kafka refuses, or the marks cannot be read to their end.
    """
    view, (name, _, stage) = pipeline.settings, pipeline.name.partition(".")
    if not isinstance(view, ViewConfig) or view.kind != "aggregate":
        return pipeline
    reason = "partial_aggregation"
    if view.partial_aggregation is None:
        built = None if view.as_of else _way_of_rows(config, pipeline, view)
        reason = "as it was built"
        if built is None:
            from processor.filter.aggregate.combining import combines_plainly  # noqa: PLC0415 - the parser

            reason, built = "new view", combines_plainly(view, config.topic(view.underlying).message_type)
        view = view.model_copy(update={"partial_aggregation": built})
    if not stage:
        return pipeline._replace(settings=view)
    parts = "one for each group and partition" if view.partial_aggregation else "one for each record"
    log.info("view aggregates", view=name, parts=parts, reason=reason)
    processor_type = plugin_of(installed(), first_stage(view), name)
    return pipeline._replace(settings=view, processor_type=processor_type)


def _way_of_rows(config: Config, pipeline: Pipeline, view: ViewConfig) -> bool | None:
    """Return whether the rows of a view were computed from combined parts; None: it has none of this definition."""
    ways = {
        fingerprint(view.model_copy(update={"partial_aggregation": way}), keys_version=version): way
        for way in (False, True)
        for version in (1, KEY_VERSION)
    }
    admin = Admin(config.kafka, config.connect_timeout_s, awaits_names=True)
    name = pipeline.name.partition(".")[0]
    for family in (f"{name}.{SPLIT}", name):
        topic = config.kafka_names.topic(family, "mark")
        if (partitions := admin.partitions_of(topic, _TIMEOUT_S)) is None:
            continue
        # Not the true end: a transaction of a process that was killed may be open for a minute.
        ends = admin.end_offsets(topic, range(partitions), _TIMEOUT_S, kind="stable_end")
        group = f"{config.group_prefix}.{pipeline.name}"
        reader = LogReader(config.kafka, group=group, fetch_wait_ms=BOUNDED_FETCH_WAIT_MS)
        for message in reversed(read_up_to(reader, topic, ends, stall_timeout_s=_TIMEOUT_S)):
            if message.key() != DEFINITION_MARK or (value := message.value()) is None:
                continue
            if (way := ways.get(value.removesuffix(AWAY_WORD))) is not None:
                return way
    return None
