"""The options of a source: each has an effect, or is refused with the reason."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from pydantic import ValidationError

from spark_integration.pipeline.ingesting.csv_rows import CsvDialect
from spark_integration.pipeline.ingesting.reader_options import dialect_of, file_options, spark_options
from spark_integration.pipeline.ingesting.sources import IngestSource

CSV = {"format": "csv", "path": "in", "schema": "id LONG"}
JSON = {"format": "json", "path": "in"}
KAFKA = {"format": "kafka", "topic": "raw"}
PARQUET = {"format": "parquet", "path": "in"}


def source(form, **options):
    """The section `from` with options."""
    return IngestSource.model_validate({**form, "options": options})


@pytest.mark.parametrize(
    ("form", "options", "why"),
    [
        (CSV, {"multiline": "yes"}, "option multiline is 'yes'; it is true or false"),
        (CSV, {"multLine": True}, "there is no option 'multLine'; did you mean 'multiLine'"),
        (CSV, {"header": True}, "option header has no effect here: give from.header; leave it out"),
        (CSV, {"mode": "DROPMALFORMED"}, "rows that do not fit go to the quarantine"),
        (CSV, {"inferSchema": True}, "the columns are those of from.schema"),
        (CSV, {"ignoreCorruptFiles": True}, "files would be lost without a word"),
        (CSV, {"unescapedQuoteHandling": "RAISE_ERROR"}, "there is no option 'unescapedQuoteHandling'"),
        (CSV, {"compression": "gzip"}, "there is no option 'compression'"),
        (CSV, {"sep": ";", "Sep": ","}, "options 'sep' and 'Sep' are one option"),
        (CSV, {"sep": ";", "delimiter": ","}, "options 'sep' and 'delimiter' are one option"),
        (CSV, {"sep": ""}, "option sep is ''"),
        (CSV, {"quote": "ab"}, "option quote is 'ab'; it is one character, or empty for none"),
        (CSV, {"quote": ","}, "option quote is ',', which is another separator"),
        (CSV, {"encoding": "UTF-16"}, "option encoding is 'UTF-16', which cannot be read line by line"),
        (CSV, {"encoding": "no-such"}, "option encoding is 'no-such'"),
        (CSV, {"lineSep": "ab"}, "option lineSep is 'ab'; it is one character"),
        (CSV, {"allowComments": True}, "there is no option 'allowComments'"),
        (JSON, {"multiLine": True}, "option multiLine has no effect on JSON, which is an object a line"),
        (JSON, {"allowComments": True}, "option allowComments has no effect on JSON without a schema"),
        (JSON, {"dateFormat": "d.M.y"}, "option dateFormat has no effect on JSON without a schema"),
        (JSON, {"encoding": "UTF-16LE"}, "option encoding has no effect on JSON, which is UTF-8"),
        (JSON, {"sep": ";"}, "there is no option 'sep'"),
        ({**JSON, "schema": "id LONG"}, {"prefersDecimal": True}, "there is no option 'prefersDecimal'"),
        (PARQUET, {"header": True}, "option header has no effect here"),
        ({**PARQUET, "schema": "id LONG"}, {"mergeSchema": True}, "there is no option 'mergeSchema'"),
        (PARQUET, {"modifiedAfter": "2026-01-01"}, "Spark does not support it for streams"),
        (KAFKA, {"subscribe": "other"}, "option subscribe has no effect here: the job reads from.topic"),
        (KAFKA, {"includeHeaders": True}, "the job reads the headers if it needs them"),
        (KAFKA, {"minPartitions": 8}, "two tasks would send the records of one partition"),
        (KAFKA, {"maxOffsetPerTrigger": 8}, "did you mean 'maxOffsetsPerTrigger'"),
        (KAFKA, {"kafka.isolation.level": "read_uncommitted"}, "the job reads committed records"),
    ],
)
def test_an_option_without_an_effect_is_refused(form, options, why):
    """Unknown, ignored, repeated and wrong options are errors of the settings, with the reason."""
    with pytest.raises(ValidationError) as caught:
        source(form, **options)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("form", "options"),
    [
        (CSV, {"SEP": "\t", "multiLine": True, "nullValue": "-", "maxFilesPerTrigger": 5, "pathGlobFilter": "*.csv"}),
        (JSON, {"latestFirst": "TRUE", "lineSep": ";"}),
        ({**JSON, "schema": "at TIMESTAMP"}, {"timestampFormat": "d.M.y", "allowComments": "true"}),
        (PARQUET, {"mergeSchema": True, "recursiveFileLookup": "true"}),
        (KAFKA, {"maxOffsetsPerTrigger": 8, "kafka.client.id": "x", "failOnDataLoss": False}),
        ({"format": "rate", "path": "x"}, {"rowsPerSecond": 5}),
        ({"table": "t"}, {"ignoreDeletes": True}),
    ],
)
def test_an_option_with_an_effect_is_taken(form, options):
    """Options that have an effect are taken in any case of their letters; those of other sources are their own."""
    source(form, **options)


def test_options_go_to_the_part_that_carries_them_out():
    """Options of files, of the spelling of CSV, and of Spark's function; times without a zone are in UTC by default."""
    options = {"SEP": r"\t", "quote": "'", "escape": "", "comment": "#", "MULTILINE": "True", "charset": "latin1"}
    dialect = dialect_of(options, ["id"], has_header=False)
    assert dialect == CsvDialect(
        columns=("id",), has_header=False, separator="\t", quote="'", escape="", comment="#", is_multi_line=True,
        encoding="iso8859-1",
    )  # fmt: skip
    assert dialect_of({}, ["id"], has_header=True) == CsvDialect(columns=("id",))
    more = {**options, "maxfilespertrigger": "5", "nullValue": "-", "latestFirst": "true"}
    assert file_options(more) == {"maxfilespertrigger": "5", "latestFirst": "true"}
    assert spark_options("csv", more) == {"nullValue": "-", "timeZone": "UTC"}
    assert spark_options("json", {"TIMEZONE": "Asia/Kolkata"}) == {"TIMEZONE": "Asia/Kolkata"}
