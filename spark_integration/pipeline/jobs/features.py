"""The job `features`: the result of a SQL query over topics, published into another topic, changed rows only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from processor.config.section import IntervalS
from processor.errors import ConfigurationError, Stop
from processor.values.pointer import names as names_of
from spark_integration.foundation.pyspark_private import jvm_of, sql_problem
from spark_integration.foundation.settings import topic_settings
from spark_integration.foundation.sql import quoted
from spark_integration.pipeline.ingesting.kafka_source import kafka_records, partition_counts, publishing_options
from spark_integration.pipeline.job import DataPath, Job, JobContext, JobSettings, SqlKind, SqlScope
from spark_integration.pipeline.monitor import QUARANTINED
from spark_integration.pipeline.published_state import DELETED, REMOVED, Prepared, PublishedState, with_text_for_null
from spark_integration.pipeline.quarantine import Quarantine
from spark_integration.pipeline.query_sources import NoColumns, QuerySources
from spark_integration.publish.columns import has_order
from spark_integration.publish.publish import WRITERS_MAX, Sending, delta_rows
from spark_integration.read.metadata_columns import METADATA, SOW
from spark_integration.read.misfit import MISFIT

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


_WRITERS: Final = 4
_MISSING_KEY: Final = "missing_key"
_MISFIT: Final = re.compile(r"(?<!\S)[^\s,]++, partition \d++, offset .*")
_ADVICE: Final = "; publish the record again"
"""The end of an error of `read_sow` for a record that does not fit: advice for callers of that function."""


class FeaturesSettings(JobSettings):
    """Settings of the job `features`."""

    sources: tuple[str, ...] = Field(alias="from", min_length=1)
    """The topics that the query reads, each a view of its name: the present record of every key."""
    sql: str
    """The query, in Spark's SQL."""
    topic: str
    """The topic to publish to."""
    key: tuple[str, ...] = Field(min_length=1)
    """The columns of the result that are the key fields of that topic."""
    every: IntervalS = Field(default=10.0, ge=0)
    """Time between two results; without new records there is none."""
    schemas: dict[str, str] = Field(default_factory=dict)
    """The columns of a source, as DDL, by topic; without them those of its Avro schema, or inferred from its records
    for each result. A source that has become empty has the columns that it had last.
    """
    null_keys: Literal["quarantine", "group"] = "quarantine"
    """A row of the result with a NULL in a key column: `quarantine`: it is set aside; `group`: the empty text stands
    for the NULL, as in views.
    """
    on_misfit: Literal["quarantine", "fail"] = "quarantine"
    """The treatment of a record that does not fit the columns of its source: it is set aside, and the result is that of
    the others; or the job fails.
    """
    quarantine: DataPath | None = None
    """The directory of the rows that are set aside; none: `quarantine` in that of the checkpoint."""
    writers: int = Field(default=_WRITERS, ge=1, le=WRITERS_MAX)
    """The number of tasks that send the changes."""

    @field_validator("sources")
    @classmethod
    def _are_names_of_views(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = list(dict.fromkeys(value))
        lower = [name.lower() for name in names]
        if twins := [name for name in names if lower.count(name.lower()) > 1]:
            raise ValueError(
                f"{twins[0]!r} and {twins[1]!r} would be one view, as Spark's names of views have no case: the query "
                "would read one of them in place of both"
            )
        return value

    @field_validator("schemas")
    @classmethod
    def _are_sources(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        others = [name for name in value if name not in info.data.get("sources", value)]
        if others:
            raise ValueError(f"{others[0]!r} is not in `from`")
        return value


class Features(Job[FeaturesSettings]):
    """Publishes the changes of a result."""

    settings_type: ClassVar[type[JobSettings]] = FeaturesSettings
    is_stateless: ClassVar[bool] = True

    def __init__(self, context: JobContext, settings: FeaturesSettings) -> None:
        """Check the settings against those of the topics.

        Raises:
            ConfigurationError: they do not fit.
        """
        super().__init__(context, settings)
        self._sources = {name: topic_settings(name, context.topics) for name in settings.sources}
        self._target = topic_settings(settings.topic, context.topics, needs_sow=False)
        pointers = self._target.topic.key_fields
        if pointers and [names_of(pointer) for pointer in pointers] != [(name,) for name in settings.key]:
            raise ConfigurationError(
                f"{context.name}: key is {list(settings.key)}, and that of the topic {settings.topic} is "
                f"{list(pointers)}: name the same fields in the same order, each a column of the result"
            )

    @classmethod
    def reads(cls, settings: Any) -> Sequence[str]:
        """The sources of the query."""
        return list(settings.sources)

    @classmethod
    def publishes(cls, settings: Any) -> Sequence[str]:
        """The topic of the settings."""
        return [settings.topic]

    @classmethod
    def ddl(cls, settings: Any) -> Mapping[tuple[str, ...], str]:
        """The columns of the sources."""
        return {("schemas", name): columns for name, columns in settings.schemas.items()}

    @classmethod
    def sql(cls, settings: Any) -> Mapping[tuple[str, ...], tuple[SqlKind, str]]:
        """The query."""
        return {("sql",): ("query", settings.sql)}

    @classmethod
    def sql_scope(cls, settings: Any) -> SqlScope | None:
        """The sources, with the columns of their records and the metadata."""
        metadata = f"{SOW} {METADATA.simpleString()}"
        named = {name: f"{columns}, {metadata}" for name, columns in settings.schemas.items()}
        return SqlScope({name: named.get(name) for name in settings.sources}, settings.key)

    def start(self, session: SparkSession, *, once: bool) -> StreamingQuery:
        """See `Job`."""
        settings, context = self.settings, self.context
        names = [source.kafka_topic("sow") for source in self._sources.values()]
        if (problem := sql_problem(jvm_of(session, "features"), settings.sql, is_query=True)) is not None:
            raise ConfigurationError(f"{context.name}: sql: {problem}")
        partition_counts(context, [*names, self._target.kafka_topic("publish")])
        state = PublishedState(session, f"{context.checkpoint}/published", settings.key, context.identity)
        quarantine = Quarantine(context, settings.quarantine)
        sources = QuerySources(context, self._sources, settings.schemas)
        # The stream is the clock: its records are never read, only its offsets.
        clock = kafka_records(session, names, context.kafka, {})

        def process(batch: DataFrame, batch_id: int) -> Counter[str]:  # noqa: ARG001 - results have their own numbers
            counts: Counter[str] = Counter()

            def set_misfits_aside() -> None:
                counts[f"{QUARANTINED}{MISFIT}"] = sources.set_aside(session, quarantine, batch_id)

            try:
                if sources.leaves_misfits_out:
                    set_misfits_aside()
                prepared = self._prepare(session, sources, state, set_misfits_aside)
            except NoColumns as missing:
                context.batches.waits_for = str(missing)
                return Counter(published=0)
            context.batches.waits_for = None
            keyless = state.keyless(prepared, batch_id)
            if keyless is not None:
                quarantine.write(self._set_aside(keyless), batch_id, _MISSING_KEY)
                counts[f"{QUARANTINED}{_MISSING_KEY}"] = keyless.count()
            changes = state.changes(prepared).persist()
            try:
                counts["published"] = changes.count()
                if counts["published"]:
                    self._publish(changes, prepared.time_ms)
            finally:
                changes.unpersist()
            state.switch(prepared)
            return counts

        return self.run(clock.writeStream.foreachBatch(context.batches.counted(process)), once=once)

    def _prepare(
        self, session: SparkSession, sources: QuerySources, state: PublishedState, set_misfits_aside: Callable[[], None]
    ) -> Prepared:
        """Prepare a result; if a record does not fit, such records are set aside first.

        Raises:
            Stop: a record does not fit, and the job has `on_misfit: fail`.
        """
        try:
            return state.prepare(self._result(session, sources))
        except Exception as error:
            # A failed CAST has the value in its text, of any length: one line is looked at, once.
            known, advice, _ = str(error).partition(_ADVICE)
            record = _MISFIT.search(known.rpartition("\n")[2]) if advice else None
            if record is None:
                raise
            if self.settings.on_misfit == "fail":
                raise Stop(
                    f"{self.context.name}: {record[0]}; publish the record again, change the columns of its topic in "
                    "`schemas`, or set `on_misfit: quarantine`"
                ) from None
        set_misfits_aside()
        return state.prepare(self._result(session, sources))

    def _result(self, session: SparkSession, sources: QuerySources) -> DataFrame:
        """The result of the query over the present records.

        Raises:
            NoColumns: the columns of a source are not known yet.
            ConfigurationError: the query cannot be run, or its result lacks a key column or has one without an order.
        """
        sources.create_views(session)
        try:
            rows = session.sql(self.settings.sql)
        except AnalysisException as error:
            inferred = [name for name in self._sources if sources.is_inferred(name)]
            advice = (
                f" The columns of {inferred[0]} are those of its present records; name the others in `schemas`."
                if inferred and error.getCondition() == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
                else ""
            )
            raise ConfigurationError(f"{self.context.name}: sql: {error.getMessage() or error}{advice}") from None
        if missing := [name for name in self.settings.key if name not in rows.columns]:
            raise ConfigurationError(
                f"{self.context.name}: the result of the query has no key column {missing[0]!r}; it has: "
                f"{', '.join(rows.columns)}"
            )
        if maps := [field for field in rows.schema.fields if not has_order(field.dataType)]:
            name, kind = maps[0].name, maps[0].dataType.simpleString()
            raise ConfigurationError(
                f"{self.context.name}: column {name!r} of the result is {kind:.200}, and Spark cannot tell whether a "
                f"map or a variant has changed; write a struct of its fields, or to_json({name}) AS {name}"
            )
        return with_text_for_null(rows, self.settings.key) if self.settings.null_keys == "group" else rows

    def _set_aside(self, keyless: DataFrame) -> DataFrame:
        """The rows without a key as the quarantine has them."""
        names = [F.when(F.col(quoted([name])).isNull(), F.lit(name)) for name in self.settings.key]
        why = " is null, and part of the key"
        if self.settings.null_keys == "group":
            why += "; another row has the key with the empty text"
        detail = F.concat(F.array_join(F.array(*names), ", "), F.lit(why))
        row = F.to_json(F.struct(*(F.col(quoted([name])) for name in keyless.columns)), {"ignoreNullFields": "false"})
        return keyless.select(
            F.lit(_MISSING_KEY).alias("reason"), detail.alias("detail"), F.lit(self.settings.topic).alias("topic"),
            F.current_timestamp().alias("at"), row.alias("row"),
        )  # fmt: skip

    def _publish(self, changes: DataFrame, time_ms: int) -> None:
        settings, context = self.settings, self.context
        values = [name for name in changes.columns if name not in (*settings.key, DELETED, REMOVED)]
        kafka = publishing_options(context, self._target.kafka_topic("publish"))
        sending = Sending.of(
            changes, settings.topic, settings.key, kafka, (), context.client, None, settings.writers,
            context.topics,
        )  # fmt: skip
        sending.write(changes, delta_rows(sending, changes, values, None, "skip", REMOVED, DELETED), time_ms)
