"""Converts Kafka records to rows: the columns of the record, then those of its metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from processor.errors import ConfigurationError
from processor.filter import compile_filter
from spark_integration.filter import filter_column
from spark_integration.foundation.settings import TopicSettings
from spark_integration.foundation.sql import Sql, aliased, quoted, refuse_variables
from spark_integration.read.decode import Decoding, changed, decoded, matched
from spark_integration.read.metadata_columns import SOW, Metadata, check_layout, laid_out, refuse_clash
from spark_integration.read.misfit import (
    MISFIT,
    MISFIT_TYPE,
    PLACE,
    RECORD,
    TEXT,
    OnMisfit,
    check_on_misfit,
    fitting,
    is_misfit,
    misfit,
    with_record,
)
from spark_integration.read.schemas.schema import (
    INFER,
    given_schema,
    own_schema,
    pinned,
    refuse_twins,
)

CHANGED = "changed"
"""The metadata column that is computed when the record is decoded."""

_IS_UNFIT = "__is_unfit"
_FITTING = "__fitting"
"""The column of the parsed record, null where it does not fit."""
_FITTING_TEXT = f"IF({_IS_UNFIT}, NULL, {TEXT})"


class Layout(NamedTuple):
    """The place of the metadata, and the treatment of records that do not fit their columns."""

    metadata: Metadata = "struct"
    on_misfit: OnMisfit = "fail"


@dataclass(frozen=True, slots=True)
class TopicReader:
    """Converts the records of one topic to rows."""

    settings: TopicSettings
    struct: StructType | None
    """The columns of the record; None: one column `value` with its JSON text."""
    described: Mapping[str, Sql | Column]
    """The metadata columns, by name. With `changed`, a Column, the records are deltas; it is computed here."""
    layout: Layout
    """The place of the metadata columns, and the treatment of misfits."""

    @classmethod
    def of(
        cls,
        settings: TopicSettings,
        schema: StructType | str | None,
        described: Mapping[str, Sql | Column],
        layout: Layout,
        infer: Callable[[], StructType],
    ) -> TopicReader:
        """Find the columns of a topic, and create its reader.

        Args:
            settings: the settings of the topic.
            schema: a StructType, DDL, `infer`, or None: the JSON text, or the columns of the topic's own schema.
            described: the metadata columns, by name.
            layout: their place, and the treatment of misfits.
            infer: infers the columns from the records.

        Raises:
            ConfigurationError: the schema cannot be used.
            Stop: the schema registry does not answer.
        """
        check_layout(layout.metadata)
        check_on_misfit(layout.on_misfit)
        if layout == ("none", "column"):
            raise ConfigurationError("metadata='none' and on_misfit='column': a misfit is metadata; leave one out")
        is_json = settings.topic.message_type == "json"
        settings = pinned(settings)
        if isinstance(schema, str) and schema.strip().lower() == INFER:
            if not is_json:
                raise ConfigurationError(
                    f"schema={schema!r} is for JSON, and {settings.name!r} is of message type "
                    f"{settings.topic.message_type}; give its columns, or for Avro leave the schema out"
                )
            struct: StructType | None = infer()
        elif schema is not None:
            struct = given_schema(schema)
        elif is_json:
            struct = None
        else:
            struct = own_schema(settings)
        if struct is not None:
            refuse_twins(struct, settings.name)
            if is_json:
                refuse_variables(struct)
            refuse_clash(struct.names, [*described, MISFIT], layout.metadata)
        return cls(settings, struct, described, layout)

    def rows(self, records: DataFrame, topic: str, *, matching: str | None = None) -> DataFrame:
        """Convert every record to a row.

        A record that does not fit the columns fails the query, as a null would look like a null or missing field of it;
        or it is a row with metadata `misfit`.

        Args:
            records: rows of Spark's Kafka source; a column `value_headers` has other headers than `headers` to decode
                the value.
            topic: their Kafka topic, for error messages.
            matching: a filter for the records; None: all records. A misfit passes unless it can be judged.

        Raises:
            ConfigurationError: the columns cannot be used.
            FilterError: the filter is invalid.
        """
        if self.settings.topic.message_type == "json":
            return self._of_json(records, topic, matching)
        assert self.struct is not None, "only JSON is shown as it is"
        if matching is not None:
            compile_filter(matching)
        decoding = self._decoding(topic, self.struct, matching)
        before = [aliased(name, one) for name, one in self.described.items() if isinstance(one, str)]
        if "value_headers" in records.columns:
            before.append("value_headers")
        rows = decoded(records.selectExpr("value", *before), decoding)
        metadata = {name: quoted([name]) for name in self._names}
        return rows.select("record.*", *laid_out(metadata, self.layout.metadata))

    @property
    def _shows_misfits(self) -> bool:
        return self.layout.on_misfit == "column"

    @property
    def _names(self) -> list[str]:
        return [*self.described, *([MISFIT] if self._shows_misfits else [])]

    def _decoding(self, topic: str, struct: StructType | None, matching: str | None) -> Decoding:
        is_delta = CHANGED in self.described
        return Decoding(self.settings, topic, struct, is_delta, matching, shows_misfits=self._shows_misfits)

    def _of_json(self, records: DataFrame, topic: str, matching: str | None) -> DataFrame:
        """Convert records of JSON, in the JVM as far as it can evaluate the filter."""
        described, shows_misfits = dict(self.described), self._shows_misfits and self.struct is not None
        if self.struct is None:
            if self._shows_misfits:
                # A text is shown as it is.
                described[MISFIT] = f"CAST(NULL AS {MISFIT_TYPE.simpleString()})"
        elif shows_misfits:
            records = with_record(records, self.struct).withColumn(_IS_UNFIT, F.expr(is_misfit()))
            described[MISFIT] = misfit(_IS_UNFIT, self.struct, topic)
            if CHANGED in described:
                described[CHANGED] = changed(F.expr(_FITTING_TEXT))
        else:
            place = [(name, one) for name in PLACE if isinstance(one := described.get(name), str)]
            records = fitting(with_record(records, self.struct), self.struct, topic, place)
        if matching is not None:
            records = self._matching(records, topic, matching, shows_misfits)
        if shows_misfits:
            records = records.withColumn(_FITTING, F.expr(f"IF({_IS_UNFIT}, NULL, {RECORD})"))
        # The names of its fields are in no text, where Spark would replace some of them.
        fields = f"{_FITTING if shows_misfits else RECORD}.* EXCEPT ({SOW})"
        if self.struct is None:
            fields = aliased("value", TEXT)
        return records.select(F.expr(fields), *laid_out(described, self.layout.metadata))

    def _matching(self, records: DataFrame, topic: str, matching: str, shows_misfits: bool) -> DataFrame:
        """The records that match, and those that do not fit."""
        if compile_filter(matching).uses_metadata:
            keyed = records.withColumn("sow_key", F.expr("CAST(key AS STRING)"))
            return matched(keyed, self._decoding(topic, None, matching))
        record = None if self.struct is None else F.expr(RECORD)
        text = F.expr(_FITTING_TEXT if shows_misfits else TEXT)
        verdict = filter_column(matching, self.struct, record=record, value=text)
        return records.where(F.expr(_IS_UNFIT) | verdict if shows_misfits else verdict)


def changed_paths_column() -> Column:
    """The metadata column `changed` of deltas: the paths of each."""
    return changed(F.expr(TEXT))
