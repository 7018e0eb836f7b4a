"""The schema registry: schemas by id, by GUID and by subject, from Confluent's client.

An id's schema never changes, so answers are kept. A missing schema is asked for again after a few seconds: a
schema may be registered after the first record of it. A registry that does not answer is no record's fault: it is asked
again for a while. Who may wait does, and hears of it by Stop; a worker's thread has other partitions, and a transaction
that ends: it waits for a moment, and holds the partition while the registry is asked on another thread.

A partial schema may be registered by mistake: the fields that a new version has lost are found.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from processor.codec.schema_registry.http_client import Asking, new_client
from processor.config.secrets import without_credentials
from processor.errors import ConfigurationError, PartitionHeld, RecordRejected, Stop

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient


def lost_fields(former: str, latest: str) -> list[str]:
    """The fields at the top level of a record that its next version does not have, as they stand in the former one.

    Args:
        former: an Avro schema, as JSON.
        latest: the next version of it.
    """
    names, left = _names(former), _names(latest)
    return [name for name in names if name not in left]


def _names(text: str) -> list[str]:
    """The names and aliases of the fields; none if it is no record."""
    try:
        schema = json.loads(text)
    except ValueError:
        return []
    fields = schema.get("fields") if isinstance(schema, dict) else None
    named = [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []
    return [str(name) for field in named for name in (field.get("name"), *(field.get("aliases") or ())) if name]


ANSWER_TIMEOUT_S: Final = 30.0
"""Time for which a registry that does not answer is asked again."""
MISSING_TTL_S: Final = 5.0
"""Time for which a schema that was not found is taken for missing."""
MISSING_MAX: Final = 1000
"""Most ids that are remembered as missing, or as schemas of another kind."""
REFERENCES_MAX: Final = 1000
"""Most schemas that one may refer to."""

_PAUSE_S, _PAUSE_MAX_S = 0.1, 3.0
_REFUSED: Final = frozenset((401, 403, 407))
_UNANSWERED: Final = frozenset((408, 429, 502, 503, 504))

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)

SchemaType: TypeAlias = Literal["AVRO", "JSON", "PROTOBUF"]
"""The registry's names of the types of schemas."""
_NOUNS: Final[Mapping[SchemaType, str]] = {
    "AVRO": "an Avro schema",
    "JSON": "a JSON Schema",
    "PROTOBUF": "a Protocol Buffers schema",
}


class SchemaText(NamedTuple):
    """A schema of the registry."""

    text: str
    """The schema itself: JSON, or for Protocol Buffers a file descriptor in Base64, or else the text of the file."""
    references: tuple[str, ...]
    """The schemas it refers to, those first that others need."""
    schema_id: int | None = None
    """Its id, where it was asked for by subject."""
    reference_names: tuple[str, ...] = ()
    """The names by which the schemas of `references` are referred to, in the same order."""


_NO_CODE: Final = (None, -1)
"""What Confluent's client gives as `error_code` of an answer that has none: of JSON, and of anything else."""


class NotFound(Exception):
    """The registry answered that there is no such schema."""


class RefusedRequest(ConfigurationError):
    """The registry refused one request, with a status that is not about our credentials."""


class Registry:
    """One registry."""

    def __init__(
        self, settings: Mapping[str, str], wait_s: float | None = None, schema_type: SchemaType = "AVRO"
    ) -> None:
        """Take the settings of Confluent's client; nothing is asked yet.

        Args:
            settings: those.
            wait_s: how long `schema` may wait for an answer; None: until there is one, `ANSWER_TIMEOUT_S` at most.
            schema_type: the type of all schemas that are asked for.

        Raises:
            ConfigurationError: a setting is wrong, or the client is not installed.
        """
        self._shown = without_credentials(settings.get("url", ""))
        self._client = new_client(settings, self._shown)
        self._type: SchemaType = schema_type
        # Another client, as each keeps its answers whatever their format.
        self._serialized = new_client(settings, self._shown) if schema_type == "PROTOBUF" else None
        self._schemas: dict[int | str, SchemaText] = {}
        self._missing: dict[int | str, tuple[float, str]] = {}
        self._refused: dict[int | str, RecordRejected] = {}
        self._wait_s = wait_s
        self._asking = Asking(self._look_up)

    def schema(self, schema_id: int | str) -> SchemaText:
        """The schema of an id, or of a GUID.

        Raises:
            RecordRejected: `schema_not_found`, or `schema_mismatch` where it is of another type.
            PartitionHeld: the registry has not answered within `wait_s`, or has refused; it is asked on.
            Stop: without `wait_s`: the registry does not answer.
        """
        if (schema := self._answer(schema_id)) is not None:
            return schema
        if self._wait_s is None:
            self._look_up(schema_id)
        else:
            before = self._asking.problem(schema_id)
            is_over = self._asking.wait(schema_id, self._wait_s)
            problem = self._asking.problem(schema_id) if is_over else before
        if (schema := self._answer(schema_id)) is not None:
            return schema
        raise PartitionHeld(
            "registry",
            problem
            or f"schema {schema_id}: the schema registry {self._shown} has not answered yet, and is asked on; start "
            "it, or correct schema_registry.url: nothing is lost",
        )

    def _answer(self, schema_id: int | str) -> SchemaText | None:
        """The registry's answers; None if it is to be asked."""
        schema = self._schemas.get(schema_id)
        if schema is None:
            if (refused := self._refused.get(schema_id)) is not None:
                raise RecordRejected(refused.reason, refused.detail)
            end_s, detail = self._missing.get(schema_id, (0.0, ""))
            if end_s > time.monotonic():
                raise RecordRejected("schema_not_found", detail)
        return schema

    def _look_up(self, schema_id: int | str) -> None:
        """Ask for a schema, and keep the answer."""
        try:
            schema = self._ask_readable(f"asking for schema {schema_id}", partial(_by_id, schema_id))
            self._schemas[schema_id] = self._whole(schema)
        except (NotFound, RefusedRequest) as error:
            # Some registries, and proxies before them, refuse an id that is none in other words than 404.
            detail = str(error) or f"the registry has no schema {schema_id}"
            _remember(self._missing, schema_id, (time.monotonic() + MISSING_TTL_S, detail))
        except RecordRejected as error:
            _remember(self._refused, schema_id, error)

    def of_subject(self, subject: str, version: int | None = None) -> SchemaText:
        """A version of a subject; None: the latest.

        Raises:
            ConfigurationError: there is none, or it is of another type.
            Stop: the registry does not answer.
        """
        registered = self._registered(subject, version)
        try:
            if version is None:
                self._warn_of_lost_fields(subject, registered)
            return self._whole(registered.schema)._replace(schema_id=registered.schema_id)
        except NotFound:
            raise ConfigurationError(
                f"subject {subject}: its schema refers to one that the schema registry {self._shown} does not have; "
                "register that one there, under the subject and version that are referred to"
            ) from None
        except RecordRejected as error:
            raise ConfigurationError(f"subject {subject}: {error.detail}; name one with {_NOUNS[self._type]}") from None

    def json_of_subject(self, subject: str, version: int | None = None) -> str | None:
        """A version of a subject, if it is a JSON Schema; None if it is of another type. Without a number: the latest.

        Raises:
            ConfigurationError: there is no such subject.
            Stop: the registry does not answer.
        """
        schema = self._registered(subject, version).schema
        return str(schema.schema_str) if schema.schema_type == "JSON" else None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
        if self._serialized is not None:
            self._serialized.close()

    def register(self, subject: str, text: str) -> int:
        """The id of a schema without references under a subject; it is registered there if it is not yet.

        Raises:
            ConfigurationError: the registry refuses it.
            Stop: the registry does not answer.
        """
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - see `new_client`

        schema = Schema(text, self._type)
        what = f"registering a schema under {subject}"
        try:
            return int(self._ask(what, lambda: self._client.lookup_schema(subject, schema)).schema_id or 0)
        except NotFound:
            pass
        try:
            return int(self._ask(what, lambda: self._client.register_schema(subject, schema)))
        except NotFound:
            raise ConfigurationError(f"{what}: the schema registry {self._shown} has no way to do it") from None
        except RefusedRequest as error:
            raise ConfigurationError(f"{error}; where it is about compatibility, give a new field a default") from None

    def _registered(self, subject: str, version: int | None) -> Any:
        if version is not None:
            return self._version(subject, version)
        try:
            return self._ask_readable(
                f"asking for subject {subject}", lambda client, form: client.get_latest_version(subject, form)
            )
        except NotFound:
            raise ConfigurationError(
                f"the schema registry {self._shown} has no subject {subject}; register the schema of the records "
                "there, or name another one: schema: {subject: NAME}, or schema: FILE"
            ) from None

    def _version(self, subject: str, version: int) -> Any:
        try:
            return self._ask_readable(f"asking for version {version} of {subject}", partial(_version, subject, version))
        except NotFound:
            raise ConfigurationError(
                f"the schema registry {self._shown} has no version {version} of subject {subject}; name another one: "
                "schema: {subject: NAME, version: NUMBER}"
            ) from None

    def _warn_of_lost_fields(self, subject: str, latest: Any) -> None:
        """Log fields that the version before the latest has: records are read without them from now on."""
        if self._type != "AVRO" or (latest.version or 1) < 2:
            return
        version = latest.version - 1
        try:
            former = self._ask(
                f"asking for version {version} of {subject}", partial(_version, subject, version, self._client, None)
            )
        except NotFound:  # It was deleted.
            return
        if lost := lost_fields(former.schema.schema_str, latest.schema.schema_str):
            _log.warning(
                "subject %s: version %d lacks %s of version %d, and records are read and merged without; if it is the "
                "schema of a producer's deltas, register that one under another subject, and delete this version, or "
                "name the one before: schema: {subject: NAME, version: NUMBER}",
                subject, latest.version, ", ".join(lost), version,
            )  # fmt: skip

    def _whole(self, schema: Any) -> SchemaText:
        """A schema with those it refers to."""
        if schema.schema_type != self._type:
            raise RecordRejected("schema_mismatch", f"the schema is of the type {schema.schema_type}, not {self._type}")
        texts: dict[tuple[str, str, int], str] = {}
        self._follow(schema, texts)
        return SchemaText(schema.schema_str, tuple(texts.values()), None, tuple(name for name, _, _ in texts))

    def _follow(self, schema: Any, texts: dict[tuple[str, str, int], str]) -> None:
        for reference in schema.references or ():
            key = (reference.name, reference.subject, reference.version)
            if key in texts:
                continue
            if len(texts) >= REFERENCES_MAX:
                raise RecordRejected("schema_mismatch", f"a schema that refers to more than {REFERENCES_MAX} others")
            referred = self._ask_readable(
                f"asking for version {reference.version} of {reference.subject}",
                partial(_version, reference.subject, reference.version),
            ).schema
            self._follow(referred, texts)
            texts[key] = str(referred.schema_str)

    def _ask_readable(self, what: str, call: Callable[[SchemaRegistryClient, str | None], Any]) -> Any:
        """Ask for a schema as it is kept; one of Protocol Buffers that is a text also as a descriptor.

        Confluent's registry keeps the text of the file and returns a descriptor on request. Others, such as Apicurio's,
        return what was registered, and fail at the request.
        """
        answer = self._ask(what, lambda: call(self._client, None))
        if self._serialized is None or is_base64(getattr(answer, "schema", answer).schema_str):
            return answer
        other = self._ask(what, lambda: _descriptor(call, self._serialized))
        return other if other is not None and is_base64(getattr(other, "schema", other).schema_str) else answer

    def _ask(self, what: str, call: Callable[[], _Answer]) -> _Answer:
        """Ask until there is an answer, or time is up."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - see `new_client`

        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        pause_s = _PAUSE_S
        while True:
            try:
                return call()
            except SchemaRegistryError as error:
                if error.http_status_code == 404:
                    raise NotFound from None
                if error.http_status_code in _REFUSED:
                    raise ConfigurationError(
                        f"{what}: the schema registry {self._shown} refuses us (HTTP {error.http_status_code}); check "
                        "the credentials in schema_registry, such as basic.auth.user.info, and what they may do"
                    ) from None
                if 400 <= error.http_status_code < 500 and error.http_status_code not in {408, 429}:
                    # A proxy answers in another form than a registry, such as nginx where a client's certificate has
                    # expired: that says nothing of this id.
                    kind = ConfigurationError if error.error_code in _NO_CODE else RefusedRequest
                    raise kind(
                        f"{what}: the schema registry {self._shown} says no (HTTP {error.http_status_code}): "
                        f"{error.error_message!s:.500}"
                    ) from None
                problem = f"HTTP {error.http_status_code}"
            except Exception as error:  # noqa: BLE001 - the client lets any error of its HTTP library through
                # Only the kind: the text may hold the address with its credentials.
                problem = type(error).__name__
            if time.monotonic() + pause_s > deadline:
                raise Stop(
                    f"{what}: the schema registry {self._shown} did not answer for {ANSWER_TIMEOUT_S:g} s ({problem}); "
                    "start it, or correct schema_registry.url, and start this again: nothing is lost"
                ) from None
            level = logging.WARNING if pause_s == _PAUSE_S else logging.DEBUG
            _log.log(level, "%s: the schema registry %s does not answer (%s); trying again", what, self._shown, problem)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)


def _descriptor(call: Callable[[Any, str | None], Any], client: Any) -> Any:
    """A schema as a descriptor; None if the registry answers otherwise. No answer is an error."""
    from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415 - see `new_client`

    try:
        return call(client, "serialized")
    except SchemaRegistryError as error:
        if error.http_status_code in _UNANSWERED:
            raise
    except (ValueError, LookupError, TypeError, AttributeError):  # The answer is none that the client reads.
        pass
    return None


def is_base64(text: str) -> bool:
    """Return whether a schema is Base64, as a serialized file descriptor is; no text of a .proto file is."""
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def _by_id(schema_id: int | str, client: SchemaRegistryClient, form: str | None) -> Any:
    if isinstance(schema_id, int):
        return client.get_schema(schema_id, fmt=form)
    return client.get_schema_by_guid(schema_id, form)


def _version(subject: str, version: int, client: SchemaRegistryClient, form: str | None) -> Any:
    return client.get_version(subject, version, fmt=form)


def _remember(answers: dict[int | str, _Answer], schema_id: int | str, answer: _Answer) -> None:
    """Keep an answer that is no schema; a fuzzed topic can name four billion ids."""
    if len(answers) >= MISSING_MAX:
        answers.clear()
    answers[schema_id] = answer
