"""Finds the columns of a topic's records: those of the caller, a file, the registry, or the topic's own schema."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from processor.config import SchemaConfig
from processor.errors import ConfigurationError
from processor.values.pointer import child
from spark_integration.foundation.settings import Settings, TopicSettings, topic_settings
from spark_integration.read.schemas.json_schema import Unmapped, json_schema_struct

if TYPE_CHECKING:
    from processor.codec.avro.schema import Schema

INFER: Final = "infer"
"""The value of `schema` to infer the columns from the topic's records."""
_GIVE: Final = "give a StructType or DDL such as 'id LONG, name STRING'"


def schema_file(path: str | Path) -> StructType:
    """Read the columns from a file: an Avro schema (`.avsc`), or a JSON Schema.

    Every column is nullable. In JSON Schema `integer` is a long and `number` a double; of Avro's logical types a UUID
    and a time of day are text.

    Raises:
        ConfigurationError: the file cannot be read, is no such schema, or Spark has no type for a part of it.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigurationError(f"the schema {file} cannot be read: {problem}") from None
    return _avro_columns(text, (), str(file)) if file.suffix == ".avsc" else _json_columns(text, str(file))


def registry_schema(topic: str, config: Settings) -> StructType:
    """Read the columns from the latest version of the topic's Avro or JSON Schema in its registry.

    Args:
        topic: the family's name.
        config: the settings with the registry; the subject is that of `schema: {subject: NAME}`, or else
            `<topic>.publish-value`.

    Raises:
        ConfigurationError: the registry or the subject is missing, or Spark has no type for a part of it.
        Stop: the registry does not answer.
    """
    settings = topic_settings(topic, config)
    if not settings.registry:
        raise ConfigurationError(
            f"topic {topic!r}: its settings name no registry; write schema_registry: {{url: http://HOST:8081}}"
        )
    from processor.codec.schema_registry.schemas import Registry  # noqa: PLC0415 - an optional package

    subject, version = _subject(settings), _version(settings)
    with closing(Registry(settings.registry)) as registry:
        if (text := registry.json_of_subject(subject, version)) is not None:
            return _json_columns(text, f"subject {subject}")
        found = registry.of_subject(subject, version)
    return _avro_columns(found.text, found.references, f"subject {subject}")


def given_schema(schema: StructType | str) -> StructType:
    """The columns of a caller's schema.

    Raises:
        ConfigurationError: the schema is neither a StructType nor DDL.
    """
    if isinstance(schema, StructType):
        return refuse_twins(schema, "schema")
    if not isinstance(schema, str):
        raise ConfigurationError(f"schema is a {type(schema).__name__}; {_GIVE}")
    try:
        parsed = StructType.fromDDL(schema)
    except ParseException as error:
        raise ConfigurationError(f"schema {schema!r} is not DDL such as 'id LONG, name STRING': {error}") from None
    if not isinstance(parsed, StructType):
        raise ConfigurationError(f"schema {schema!r} names no fields; give DDL such as 'id LONG, name STRING'")
    return refuse_twins(parsed, "schema")


def refuse_twins(struct: StructType, noun: str) -> StructType:
    """Refuse columns that differ by case alone, at any depth, where the session does not tell them apart.

    Args:
        struct: the columns.
        noun: what has them, for the error.

    Returns:
        The same columns.

    Raises:
        ConfigurationError: there are such columns.
    """
    if twins := _twins(struct, ""):
        session = SparkSession.getActiveSession()
        if session is None or session.conf.get("spark.sql.caseSensitive", "false") != "true":
            raise ConfigurationError(
                f"{noun}: {twins[0]} and {twins[1]} differ by case alone, and Spark takes one for the other; leave one "
                "out, or set spark.sql.caseSensitive to true"
            )
    return struct


def _twins(kind: DataType, path: str) -> tuple[str, str] | None:
    """The first two fields of a type whose names differ by case alone, as JSON Pointers."""
    match kind:
        case ArrayType(elementType=inner) | MapType(valueType=inner):
            return _twins(inner, path)
        case StructType(fields=fields):
            seen: dict[str, str] = {}
            for field in fields:
                place = child(path, field.name)
                other = seen.setdefault(field.name.lower(), place)
                if other != place:
                    return other, place
                if (inside := _twins(field.dataType, place)) is not None:
                    return inside
    return None


def own_schema(settings: TopicSettings) -> StructType:
    """The columns of a topic whose message type has a schema.

    Args:
        settings: the topic's settings, from `pinned`.

    Raises:
        ConfigurationError: the message type has no schema, or Spark has no type for a part of it.
    """
    if settings.topic.message_type != "avro":
        raise ConfigurationError(
            f"topic {settings.name!r} is of message type {settings.topic.message_type}, which does not say what "
            f"columns there are; {_GIVE}: schema=..."
        )
    return _avro_columns(settings.schema_text or "", (), f"the schema of topic {settings.name!r}")


def pinned(settings: TopicSettings) -> TopicSettings:
    """Fix the current schema in the settings, so that every executor reads with the same one.

    Raises:
        ConfigurationError: the schema is missing or cannot be used.
        Stop: the registry does not answer.
    """
    if settings.topic.message_type != "avro":
        return settings
    from processor.codec.avro.delta import whole_schema_text  # noqa: PLC0415 - an optional package
    from processor.codec.schema_registry.schemas import Registry  # noqa: PLC0415 - as well

    schema_config = settings.topic.message_schema
    if schema_config is not None and (schema_config.file is not None or schema_config.text is not None):
        text, where = settings.schema_text, schema_config.place
        if text is None:
            assert schema_config.file is not None
            settings.codec(reads_only=True)  # Raises the error of the file.
            text = schema_config.file.read_text(encoding="utf-8")
        schema = _avro(text, (), where)
    elif settings.registry:
        where = f"subject {_subject(settings)}"
        with closing(Registry(settings.registry)) as registry:
            found = registry.of_subject(_subject(settings), _version(settings))
        schema = _avro(found.text, found.references, where)
    else:
        settings.codec(reads_only=True)  # Raises the error for the missing schema.
        raise AssertionError("an Avro codec without a schema")
    # No machine has this file, so that the codec uses the text.
    here = SchemaConfig(file=Path(f"{where} as of the start/"))
    topic = settings.topic.model_copy(update={"message_schema": here})
    return replace(settings, topic=topic, schema_text=whole_schema_text(schema))


def _subject(settings: TopicSettings) -> str:
    schema_config = settings.topic.message_schema
    return (
        schema_config.subject if schema_config is not None else None
    ) or f"{settings.names.topic(settings.name, 'publish')}-value"


def _version(settings: TopicSettings) -> int | None:
    return settings.topic.message_schema.version if settings.topic.message_schema is not None else None


def _avro(text: str, references: tuple[str, ...], where: str) -> Schema:
    from processor.codec.avro.schema import BadSchema, Schema  # noqa: PLC0415 - an optional package

    try:
        return Schema(text, references)
    except BadSchema as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _avro_columns(text: str, references: tuple[str, ...], where: str) -> StructType:
    schema = _avro(text, references, where)
    from spark_integration.read.schemas.avro_types import avro_struct  # noqa: PLC0415 - an optional package

    try:
        return avro_struct(schema)
    except Unmapped as error:
        raise ConfigurationError(f"{where}: {error}") from None


def _json_columns(text: str, where: str) -> StructType:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{where}: not JSON: {error}; name an Avro schema (.avsc) or a JSON Schema") from None
    try:
        return json_schema_struct(document)
    except Unmapped as error:
        raise ConfigurationError(f"{where}: {error}") from None
