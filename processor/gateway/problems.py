"""Errors of HTTP endpoints as `application/problem+json` (RFC 9457)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from processor.errors import (
    BrokerUnavailable,
    ConfigurationError,
    FilterError,
    RecordRejected,
    SowstreamError,
    TopicMoved,
)
from processor.gateway.access.identity import AccessDenied
from processor.gateway.access.requests import BadRequest

_STATUS = {
    "bad_request": 400,
    "unknown_op": 400,
    "missing_key": 400,
    "unsupported": 400,
    "logon_required": 401,
    "not_entitled": 403,
    "no_such_subscription": 404,
    "not_found": 404,
    "too_large": 413,
    "unsupported_media": 415,
    "key_reused": 422,
    "too_many": 429,
    "limit": 403,
    "unavailable": 503,
    "not_yet": 503,
}
RETRY = {429: {"Retry-After": "1"}, 503: {"Retry-After": "1"}}
"""Headers of answers that say "not now", by status."""
PRIVATE = {"Cache-Control": "no-store", "Vary": "Authorization"}
"""Headers of answers that depend on the rights of their user, and have no ETag."""
_TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not entitled",
    404: "Not found",
    410: "Moved",
    413: "Too large",
    415: "Unsupported media type",
    422: "The record was rejected",
    429: "Too many requests",
    431: "Too large",
    500: "Internal error",
    503: "Not available now",
}


def status_of(error: Exception) -> int:
    """The status of an error."""
    if isinstance(error, BadRequest):
        return _STATUS.get(error.reason, 400)
    if isinstance(error, AccessDenied):
        return 401
    if isinstance(error, RecordRejected):
        return 422
    if isinstance(error, BrokerUnavailable):
        return 503
    if isinstance(error, TopicMoved):
        return 410
    return 400 if isinstance(error, ConfigurationError) else 500


def problem(status: int, detail: str, **fields: object) -> JSONResponse:
    """A problem as a response."""
    body = {"type": "about:blank", "title": _TITLES.get(status, "Error"), "status": status, "detail": detail, **fields}
    headers = PRIVATE | (RETRY | {401: {"WWW-Authenticate": "Bearer"}}).get(status, {})
    return JSONResponse(body, status, headers, media_type="application/problem+json")


async def on_error(_request: Request, error: Exception) -> Response:
    """The response for an error of this project."""
    assert isinstance(error, SowstreamError)
    fields: dict[str, object] = {}
    if isinstance(error, BadRequest | RecordRejected):
        fields["reason"] = error.reason
    if isinstance(error, BrokerUnavailable):
        fields["reason"] = "unavailable"
    if isinstance(error, TopicMoved):
        fields |= {"reason": "moved", "moved_to": error.moved_to}
    if isinstance(error, FilterError):
        fields |= {"reason": "bad_filter", "line": error.line, "column": error.column}
    return problem(status_of(error), str(error), **fields)
