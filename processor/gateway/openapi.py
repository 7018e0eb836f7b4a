"""The OpenAPI document of the HTTP endpoints."""

from __future__ import annotations

from typing import Any

from processor.gateway.access.requests import PUBLISHING
from processor.wire.publisher_headers import GATEWAY_ARGUMENTS

_TOPIC = {"name": "topic", "in": "path", "required": True, "schema": {"type": "string"}}
_PROBLEM = {
    "description": "An error (RFC 9457).",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def _query(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in names]


def _operation(summary: str, media: str, parameters: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    answer = {"description": summary, "content": {media: {"schema": {"type": "object"}}}}
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {"200": answer, **dict.fromkeys(("400", "401", "403", "410", "503"), _PROBLEM)},
        **more,
    }


def document() -> dict[str, Any]:
    """The document, as JSON's values."""
    options = _query("filter", "select", "order_by", "top_n", "skip_n")
    body = {
        "required": True,
        "description": "One record, or one record a line.",
        "content": {"application/json": {"schema": {}}, "application/x-ndjson": {"schema": {"type": "string"}}},
    }
    record = _operation(
        "One record; its version is the ETag.",
        "application/json",
        [
            _TOPIC,
            {"name": "key", "in": "path", "required": True, "schema": {"type": "string"}},
            {"name": "min_version", "in": "query", "required": False, "schema": {"type": "integer", "minimum": 0}},
        ],
    )
    record["responses"]["404"] = record["responses"]["503"] = _PROBLEM
    paths: dict[str, Any] = {
        "/v1/topics": {"get": _operation("The topics that the client may use.", "application/json", [])},
        "/v1/topics/{topic}/records/{key}": {"get": record},
        "/v1/topics/{topic}/sow": {
            "get": _operation("The records that match, a line each.", "application/x-ndjson", [_TOPIC, *options])
        },
        "/v1/topics/{topic}/subscribe": {
            "get": _operation(
                "Server-Sent Events; the header Last-Event-ID resumes.",
                "text/event-stream",
                [_TOPIC, *options, *_query("op", "resume", "oof", "no_empties", "conflation")],
            )
        },
    }
    for op in sorted(PUBLISHING):
        more = [{"name": "Idempotency-Key", "in": "header", "required": False, "schema": {"type": "string"}}]
        paths[f"/v1/topics/{{topic}}/{op}"] = {
            "post": _operation(
                f"{op}: an ack for each record.",
                "application/x-ndjson",
                [_TOPIC, *more, *_query("key", *GATEWAY_ARGUMENTS)],
                requestBody=body,
            )
        }
    problem = {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "reason": {"type": "string"},
        },
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sowstream gateway", "version": "1"},
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": {"Problem": problem},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
