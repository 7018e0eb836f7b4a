"""The requests of clients: their fields, checked before anything is done; and their description as OpenAPI."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from processor.codec import value_checks
from processor.codec.contract import CodecOptions
from processor.codec.json import JsonCodec
from processor.errors import ConfigurationError, RecordRejected, SowstreamError, unknown_name
from processor.record import Value
from processor.subscriptions.request.subscribe_options import FORMS, Options
from processor.wire.publisher_headers import GATEWAY_ARGUMENTS

DEPTH_MAX: Final = 64
"""Deepest nesting of a record in a request."""
ID_CHARACTERS_MAX: Final = 128
"""Longest id of a request."""

SUBSCRIBE_OPTIONS: Final = tuple(name for name in Options._fields if name != "bookmark")
"""The options of a query string of a subscription."""
SOW_OPTIONS: Final = ("select", "order_by", "top_n", "skip_n", "timestamp")
"""Those of a query."""
PUBLISHING: Final = frozenset(("publish", "delta_publish", "sow_delete"))
_DELETE_ARGUMENTS: Final = tuple(name for name, argument in GATEWAY_ARGUMENTS.items() if argument.is_for_deletes)

PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "record": ("min_version",),
    "sow": ("filter", *SOW_OPTIONS),
    "subscribe": ("op", "filter", "resume", *SUBSCRIBE_OPTIONS),
    **dict.fromkeys(("publish", "delta_publish"), ("key", *GATEWAY_ARGUMENTS)),
    "sow_delete": ("key", *_DELETE_ARGUMENTS),
}
"""The parameters of the HTTP endpoints below a topic, which have no others."""
_FIELDS: Final[dict[str, frozenset[str]]] = {
    "logon": frozenset(("token", "client")),
    **{op: frozenset(("topic", "filter", "options", "resume")) for op in FORMS},
    "replace": frozenset(("sub", "filter", "options")),
    "unsubscribe": frozenset(("sub",)),
    **{
        op: frozenset(("topic", "data", "key", "ack", "sequence", *GATEWAY_ARGUMENTS))
        for op in ("publish", "delta_publish")
    },
    "sow_delete": frozenset(("topic", "data", "key", "ack", "sequence", "keys", "filter", *_DELETE_ARGUMENTS)),
    "ping": frozenset(),
}
_KINDS: Final = {
    **dict.fromkeys(("token", "client", "topic", "filter", "resume", "sub", "key", "ack"), str),
    "sequence": int,
    **{name: argument.kind for name, argument in GATEWAY_ARGUMENTS.items()},
}
_NAME_SHOWN: Final = 40
"""Characters of an unknown name in an error."""
_ACCEPTED: Final[dict[type, tuple[tuple[type, ...], str]]] = {
    str: ((str,), "a text"),
    int: ((int,), "a whole number"),
    float: ((int, float, Decimal), "a number"),
}
"""The types of JSON's values that are read as a type, and its name in errors."""
_CODEC: Final = JsonCodec(CodecOptions(max_depth=value_checks.DEPTH_MAX))
_HEAD: Final = re.compile(
    r'\s*\{\s*(?:"op"\s*:\s*"[a-z_]{1,32}"\s*,\s*)?"id"\s*:\s*(?:"([^"\\]{1,128})"|([0-9]{1,18}))\s*[,}]', re.ASCII
)
"""The beginning of a request with its id, as our clients write it."""


class BadRequest(SowstreamError):
    """A request that cannot be meant. `reason` is one word of a closed list, the message has the details."""

    def __init__(self, reason: str, message: str, request_id: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.request_id = request_id


class Request(NamedTuple):
    """One request of a client."""

    op: str
    """Its kind."""
    id: str
    """The client's name for it."""
    fields: dict[str, Value]
    """Its other fields, by name; those that are null are left out."""

    def text(self, name: str) -> str | None:
        """The value of a text field; None if it is not there."""
        return self.fields.get(name)

    def required(self, name: str) -> str:
        """The value of a text field that must be there."""
        value: str | None = self.fields.get(name)
        if value is None:
            raise BadRequest("bad_request", f"{self.op} needs the field {name!r}", self.id)
        return value


def read_requests(text: str) -> list[Value]:
    """The requests of a frame: one object, or an array of them. `request_of` checks each.

    Raises:
        BadRequest: it is no JSON; it has the id of the request, if that stands at the beginning.
    """
    try:
        tree = _decoded(text.encode(), "the frame")
    except BadRequest as error:
        head = _HEAD.match(text)
        raise BadRequest(error.reason, str(error), head[1] or head[2] if head else "") from None
    return tree if type(tree) is list else [tree]


def read_json(data: bytes, what: str) -> Value:
    """The value of a JSON text that a client sent, its numbers with every digit; `what` names the text in errors.

    Raises:
        BadRequest: it is no JSON, or too deep, or has a text that is none.
    """
    tree = _decoded(data, what)
    _check_depth(tree, DEPTH_MAX, what)
    return tree


def _decoded(data: bytes, what: str) -> Value:
    try:
        return _CODEC.decode(data)
    except RecordRejected as error:
        raise BadRequest("bad_request", f"{what}: {error.detail}") from None


def _check_depth(tree: Value, depth_max: int, what: str, request_id: str = "") -> None:
    try:
        value_checks.check_depth(tree, depth_max)
    except RecordRejected:
        raise BadRequest("bad_request", f"{what} is nested deeper than {DEPTH_MAX} levels", request_id) from None


def request_of(tree: Value) -> Request:
    """One request, with its fields checked.

    Raises:
        BadRequest: a field is missing, unknown or of another type.
    """
    if type(tree) is not dict:
        raise BadRequest("bad_request", "a request is an object with `op` and `id`")
    request_id = tree.get("id")
    if type(request_id) is int:
        request_id = str(request_id)
    if type(request_id) is not str or not 0 < len(request_id) <= ID_CHARACTERS_MAX:
        raise BadRequest("bad_request", f"a request needs an `id`: a text of 1 to {ID_CHARACTERS_MAX} characters")
    op = tree.get("op")
    if type(op) is not str or op not in _FIELDS:
        raise BadRequest("unknown_op", unknown_name("op", str(op)[:_NAME_SHOWN], [*_FIELDS]), request_id)
    _check_depth(tree, DEPTH_MAX + 1, op, request_id)  # The request is a level of its own.
    fields = {name: value for name, value in tree.items() if name not in ("op", "id") and value is not None}
    for name, value in fields.items():
        if name not in _FIELDS[op]:
            what = unknown_name("field", name[:_NAME_SHOWN], [*_FIELDS[op]])
            raise BadRequest("bad_request", f"{op}: {what}", request_id)
        if (kind := _KINDS.get(name)) is not None:
            accepted, kind_name = _ACCEPTED[kind]
            if type(value) not in accepted:
                raise BadRequest("bad_request", f"{op}: {name} is {kind_name}", request_id)
            if type(value) is Decimal:
                fields[name] = float(value)
        if name == "options" and type(value) is not dict:
            raise BadRequest("bad_request", f"{op}: options is an object", request_id)
        if name == "keys" and not (type(value) is list and all(type(key) is str for key in value)):
            raise BadRequest("bad_request", f"{op}: keys is an array of texts", request_id)
    return Request(op, request_id, fields)


def check_parameters(names: Iterable[str], endpoint: str) -> None:
    """Check the names of an HTTP request's parameters: one that is ignored would give another answer than asked for.

    `record` ignores names unlike its own: clients ask it with the query of their gateway's address, which is a proxy's.

    Raises:
        BadRequest: the endpoint has no such parameter, or one is given twice.
    """
    known, seen = [*PARAMETERS[endpoint]], set()
    for name in names:
        if name not in known:
            if endpoint == "record" and not get_close_matches(name[:_NAME_SHOWN], known):
                continue
            raise BadRequest("bad_request", unknown_name("parameter", name[:_NAME_SHOWN], known))
        if name in seen:
            raise BadRequest("bad_request", f"the parameter {name!r} is given twice")
        seen.add(name)


def arguments_of(options: dict[str, Any]) -> dict[str, Any]:
    """Options as an object, as `parse_options` takes them by name."""
    for name in options:
        if not name.isidentifier():
            raise ConfigurationError(f"there is no option {name!r:.40}")
    return {
        name: tuple(value) if type(value) is list and name == "conflation_key" else value
        for name, value in options.items()
    }


_PROBLEM = {
    "description": "An error (RFC 9457).",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_PROBLEM_FIELDS = {
    "type": {"type": "string"},
    "title": {"type": "string"},
    "status": {"type": "integer"},
    "detail": {"type": "string"},
    "reason": {"type": "string"},
}
_JSON, _LINES, _EVENTS = "application/json", "application/x-ndjson", "text/event-stream"


def _parameter(name: str, place: str, kind: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": kind or {"type": "string"}}


_TOPIC = _parameter("topic", "path")


def _query(endpoint: str) -> list[dict[str, Any]]:
    kinds = {"min_version": {"type": "integer", "minimum": 0}}
    return [_parameter(name, "query", kinds.get(name)) for name in PARAMETERS[endpoint]]


def _operation(summary: str, media: str, *parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = {"description": summary, "content": {media: {"schema": {"type": "object"}}}}
    return {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {"200": answer, **dict.fromkeys(("400", "401", "403", "410", "503"), _PROBLEM)},
        **more,
    }


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the HTTP endpoints, as JSON's values."""
    status = "The status of the installation, for operators; `sowstream status` shows the same."
    record = _operation(
        "One record; its version is the ETag.", _JSON, _TOPIC, _parameter("key", "path"), *_query("record")
    )
    record["responses"]["404"] = _PROBLEM
    events = "Server-Sent Events; the header Last-Event-ID resumes."
    reads = {
        "/v1/status": _operation(status, _JSON),
        "/v1/topics": _operation("The topics that the client may use.", _JSON),
        "/v1/topics/{topic}/records/{key}": record,
        "/v1/topics/{topic}/sow": _operation("The records that match, a line each.", _LINES, _TOPIC, *_query("sow")),
        "/v1/topics/{topic}/subscribe": _operation(events, _EVENTS, _TOPIC, *_query("subscribe")),
    }
    body = {
        "required": True,
        "description": "One record, or one record a line.",
        "content": {_JSON: {"schema": {}}, _LINES: {"schema": {"type": "string"}}},
    }
    once = _parameter("Idempotency-Key", "header")
    writes = {
        f"/v1/topics/{{topic}}/{op}": _operation(
            f"{op}: an ack for each record.", _LINES, _TOPIC, once, *_query(op), requestBody=body
        )
        for op in sorted(PUBLISHING)
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sowstream gateway", "version": "1"},
        "security": [{"bearer": []}],
        "paths": {path: {"get": operation} for path, operation in reads.items()}
        | {path: {"post": operation} for path, operation in writes.items()},
        "components": {
            "schemas": {"Problem": {"type": "object", "properties": _PROBLEM_FIELDS}},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
