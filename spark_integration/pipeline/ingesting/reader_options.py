"""The options of an ingest job's source: each has an effect, or is refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from processor.codec.nvfix import python_encoding
from processor.errors import unknown_name
from spark_integration.pipeline.ingesting.csv_rows import CsvDialect
from spark_integration.read.mask import FROM_JSON

_FILES: Final = (
    "maxFilesPerTrigger", "maxBytesPerTrigger", "maxFileAge", "latestFirst", "fileNameOnly", "cleanSource",
    "sourceArchiveDir", "maxCachedFiles", "discardCachedInputRatio", "pathGlobFilter", "recursiveFileLookup",
)  # fmt: skip
"""Options of a stream of files."""
_TIMES: Final = (
    "dateFormat", "timestampFormat", "timestampNTZFormat", "enableDateTimeParsingFallback", "locale", "timeZone",
)  # fmt: skip
_CSV_SPARK: Final = (
    "nullValue", "emptyValue", "nanValue", "positiveInf", "negativeInf", "ignoreLeadingWhiteSpace",
    "ignoreTrailingWhiteSpace", "maxColumns", "maxCharsPerColumn", *_TIMES,
)  # fmt: skip
"""Options of CSV that Spark's function carries out."""
_CSV: Final = (
    "sep",
    "delimiter",
    "quote",
    "escape",
    "comment",
    "multiLine",
    "lineSep",
    "encoding",
    "charset",
    *_CSV_SPARK,
)
_JSON_SPARK: Final = (
    "primitivesAsString", "allowComments", "allowUnquotedFieldNames", "allowSingleQuotes", "allowNumericLeadingZeros",
    "allowBackslashEscapingAnyCharacter", "allowUnquotedControlChars", "allowNonNumericNumbers", *_TIMES,
)  # fmt: skip
"""Options of JSON with a schema that Spark's function carries out."""
_OF_FORMAT: Final = {
    "parquet": ("mergeSchema", "datetimeRebaseMode", "int96RebaseMode"),
    "orc": ("mergeSchema",),
    "avro": (
        "avroSchema", "datetimeRebaseMode", "positionalFieldMatching", "recursiveFieldMaxDepth",
        "enableStableIdentifiersForUnionType", "stableIdentifierPrefixForUnionType",
    ),
}  # fmt: skip
_KAFKA: Final = (
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
)  # fmt: skip
_BOOLEANS: Final = frozenset(
    (
        "latestfirst", "filenameonly", "recursivefilelookup", "multiline", "ignoreleadingwhitespace",
        "ignoretrailingwhitespace", "mergeschema", "enabledatetimeparsingfallback", "failondataloss",
        "primitivesasstring", "positionalfieldmatching", "enablestableidentifiersforuniontype",
        *(name.lower() for name in _JSON_SPARK if name.startswith("allow")),
    )
)  # fmt: skip
_REASONS: Final = {
    "mode": "rows that do not fit go to the quarantine, or stop the job",
    "columnnameofcorruptrecord": "rows that do not fit go to the quarantine, or stop the job",
    "ignorecorruptfiles": "files would be lost without a word",
    "ignoremissingfiles": "files would be lost without a word",
    "modifiedbefore": "Spark does not support it for streams",
    "modifiedafter": "Spark does not support it for streams",
    "header": "give from.header",
    "inferschema": "the columns are those of from.schema",
    "enforceschema": "the columns are those of from.schema, and each header is compared with them",
    "samplingratio": "the columns are those of from.schema",
    "preferdate": "the columns are those of from.schema",
    "subscribe": "the job reads from.topic",
    "subscribepattern": "the job reads from.topic",
    "assign": "the job reads from.topic",
    "includeheaders": "the job reads the headers if it needs them",
    "minpartitions": "two tasks would send the records of one partition",
    "maxrecordsperpartition": "two tasks would send the records of one partition",
    "kafka.isolation.level": "the job reads committed records",
}
"""The reasons for options that people know from Spark, by their names in lower case."""


def check_options(form: str, options: Mapping[str, str], *, has_schema: bool, more: Sequence[str] = ()) -> None:
    """Refuse options that have no effect on a source of this format, and values that are none; `more` have one, too.

    Raises:
        ValueError: an option is unknown, has no effect here, is given twice, or has a wrong value.
    """
    of_format = _known(form, has_schema=has_schema)
    if of_format is None:
        return  # A source of others has options of its own.
    known = (*of_format, *more)
    spelled: dict[str, str] = {}
    by_lower = {name.lower(): name for name in known}
    for name, value in options.items():
        lower = name.lower()
        if (twin := spelled.get(lower)) is not None:
            raise ValueError(f"options {twin!r} and {name!r} are one option; give it once")
        spelled[lower] = name
        if lower not in by_lower and not (form == "kafka" and lower.startswith("kafka.") and lower not in _REASONS):
            raise ValueError(_refusal(form, name, known, has_schema=has_schema))
        if lower in _BOOLEANS and value.lower() not in ("true", "false"):
            raise ValueError(f"option {name} is {value!r}; it is true or false")
    for one, other in (("sep", "delimiter"), ("encoding", "charset")):
        if one in spelled and other in spelled:
            raise ValueError(f"options {one!r} and {other!r} are one option; give it once")
    if form == "csv":
        encoding_of(options)
        _check_characters(options)


def option(options: Mapping[str, str], *names: str) -> str | None:
    """The value of an option by its names, in any case, as Spark reads them; None where it is not given."""
    lower = {name.lower(): value for name, value in options.items()}
    return next((lower[name.lower()] for name in names if name.lower() in lower), None)


def file_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a stream of files."""
    return _chosen(options, _FILES)


def spark_options(form: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options that Spark's function for a format of text carries out; times without a zone are in UTC."""
    chosen = _chosen(options, _CSV_SPARK if form == "csv" else _JSON_SPARK)
    return chosen if option(chosen, "timeZone") is not None else {**FROM_JSON, **chosen}


def encoding_of(options: Mapping[str, str]) -> str:
    """Python's name of the encoding of files of text.

    Raises:
        ValueError: there is none of that name, or one in which line ends are not those of ASCII, as in UTF-16.
    """
    name = option(options, "encoding", "charset") or "UTF-8"
    encoding = python_encoding(name)
    if encoding is None:
        raise ValueError(f"option encoding is {name!r}, which cannot be read line by line; convert the files to UTF-8")
    return encoding


def dialect_of(
    options: Mapping[str, str],
    columns: Sequence[str],
    *,
    has_header: bool,
    decimals: Sequence[tuple[int, int]] = (),
    doubles: Sequence[tuple[int, float]] = (),
    times: Sequence[tuple[int, bool]] = (),
) -> CsvDialect:
    """The spelling of CSV files by the options of Spark's reader, with its defaults."""
    separator = option(options, "sep", "delimiter") or ","
    escape, quote = option(options, "escape"), option(options, "quote")
    return CsvDialect(
        columns=tuple(columns),
        has_header=has_header,
        separator="\t" if separator == r"\t" else separator,
        quote='"' if quote is None else quote,
        escape="\\" if escape is None else escape,
        comment=option(options, "comment") or "",
        line_separator=option(options, "lineSep") or "\n",
        is_multi_line=(option(options, "multiLine") or "false").lower() == "true",
        skips_spaces=(option(options, "ignoreLeadingWhiteSpace") or "false").lower() == "true",
        encoding=encoding_of(options),
        decimals=tuple((place, scale if option(options, "locale") is None else None) for place, scale in decimals),
        doubles=tuple(doubles),
        times=tuple(times),
    )


def _known(form: str, *, has_schema: bool) -> tuple[str, ...] | None:
    """The options that have an effect; None for a source that is not known."""
    if form == "kafka":
        return (*_KAFKA, *_JSON_SPARK) if has_schema else _KAFKA
    if form == "csv":
        return (*_FILES, *_CSV)
    if form == "json":
        return (*_FILES, "lineSep", *_JSON_SPARK) if has_schema else (*_FILES, "lineSep")
    own = _OF_FORMAT.get(form)
    if own is None:
        return None
    # A schema that is given is not merged.
    return (*_FILES, *(name for name in own if not has_schema or name != "mergeSchema"))


def _refusal(form: str, name: str, known: Sequence[str], *, has_schema: bool) -> str:
    lower = name.lower()
    if lower in _REASONS:
        return f"option {name} has no effect here: {_REASONS[lower]}; leave it out"
    if form == "json" and lower in ("encoding", "charset"):
        return f"option {name} has no effect on JSON, which is UTF-8; convert the files"
    if form == "json" and not has_schema and lower in {known.lower() for known in _JSON_SPARK}:
        return f"option {name} has no effect on JSON without a schema, whose lines are sent as they are; leave it out"
    if form == "json" and lower == "multiline":
        return "option multiLine has no effect on JSON, which is an object a line; leave it out"
    return f"{unknown_name('option', name, list(known))}; options of format {form} without an effect here are refused"


def _check_characters(options: Mapping[str, str]) -> None:
    """Refuse characters that do not make a spelling of CSV."""
    separator = option(options, "sep", "delimiter")
    if separator is not None and (not separator or (separator.startswith("\\") and separator != r"\t")):
        raise ValueError(f"option sep is {separator!r}; write the text itself, or \\t")
    for name in ("quote", "escape", "comment"):
        value = option(options, name)
        if value is not None and (len(value) > 1 or value in ("\n", "\r")):
            raise ValueError(f"option {name} is {value!r}; it is one character, or empty for none")
    line_separator = option(options, "lineSep")
    if line_separator is not None and len(line_separator) != 1 and line_separator != "\r\n":
        raise ValueError(f"option lineSep is {line_separator!r}; it is one character")
    quote = '"' if (quote := option(options, "quote")) is None else quote
    if quote and quote in (separator or ",", option(options, "comment"), line_separator):
        raise ValueError(f"option quote is {quote!r}, which is another separator")


def _chosen(options: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    lower = {name.lower() for name in names}
    return {name: value for name, value in options.items() if name.lower() in lower}
