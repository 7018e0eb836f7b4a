"""The endpoints that publish: a body of one record, or of lines of JSON, and an ack for each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog
from starlette.requests import Request
from starlette.responses import Response

from processor.codec.display import to_json_line
from processor.errors import SowstreamError
from processor.gateway.access.identity import Identity
from processor.gateway.access.origins import is_allowed
from processor.gateway.http.endpoints import identity_of
from processor.gateway.publishing import describe
from processor.gateway.sessions.requests import PUBLISHING, BadRequest, read_json

if TYPE_CHECKING:
    from processor.gateway.gateway import Gateway
    from processor.wire.ack import Ack

log = structlog.stdlib.get_logger("sowstream.gateway")

_ACK_TIMEOUT_S: Final = 60.0
_BODY_TIMEOUT_S: Final = 30.0

_Answer: TypeAlias = dict[str, Any]
"""The ack of one command, as the client gets it."""


class PublishEndpoint:
    """`POST /v1/topics/{topic}/{op}`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def publish(self, request: Request) -> Response:
        """Publish one record, or lines of JSON; answers with an ack for each."""
        gateway = self._gateway
        identity, topic = await identity_of(gateway, request), request.path_params["topic"]
        op = request.path_params["op"]
        if op not in PUBLISHING:
            raise BadRequest("not_found", "there is no such endpoint")
        if not is_allowed(request.headers.get("origin"), request.headers.get("host"), gateway.settings.origins):
            raise BadRequest("not_entitled", "this origin may not publish")
        rows = await self._rows(request, op)
        token = request.headers.get("idempotency-key")
        # With a right that has a filter, the next command is checked against the record that the last one left.
        in_turn = gateway.rights(identity, topic).publish is not None
        answers: list[asyncio.Future[_Answer]] = []
        for number, row in enumerate(rows, 1):
            numbered = row if token is None else {**row, "sequence": number}
            answers.append(await self._send(identity, op, topic, {"ack": "persisted", **numbered}, token or "http"))
            if in_turn:
                await asyncio.wait(answers[-1:], timeout=_ACK_TIMEOUT_S)
        if answers:
            await asyncio.wait(answers, timeout=_ACK_TIMEOUT_S)
        acks = [answer.result() if answer.done() else _MISSING for answer in answers]
        status = 200 if all(ack["status"] == "success" for ack in acks) else 422
        if len(acks) == 1 and acks[0]["reason"] == "not_entitled":
            status = 403
        body = "".join(f"{to_json_line(ack)}\n" for ack in acks)
        return Response(body, status, media_type="application/x-ndjson")

    async def _rows(self, request: Request, op: str) -> list[dict[str, Any]]:
        """The commands of a body: the fields of each."""
        text = await self._text(request)
        try:
            lines = [read_json(line, "the body") for line in text.splitlines() if line.strip()]
        except BadRequest as error:
            try:
                lines = [read_json(text, "the body")]
            except BadRequest:
                raise BadRequest("bad_request", f"neither a record nor lines of JSON: {error}") from None
        query = request.query_params
        common: dict[str, Any] = {name: query[name] for name in ("key", "correlation_id") if name in query}
        for name, read in (("expiration", float), ("expect_version", int)):
            if name in query:
                try:
                    common[name] = read(query[name])
                except ValueError:
                    raise BadRequest("bad_request", f"{name} is a number") from None
        if op == "sow_delete":
            return [{**common, **({"data": line} if line else {})} for line in lines or [{}]]
        return [{**common, "data": line} for line in lines]

    async def _text(self, request: Request) -> str:
        """The body of a request."""
        size, size_max, parts = 0, self._gateway.limits.message_bytes, []
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                async for part in request.stream():
                    size += len(part)
                    if size > size_max:
                        raise BadRequest("too_large", f"a request has at most {size_max} bytes")
                    parts.append(part)
        except TimeoutError:
            raise BadRequest("too_slow", f"the body did not come within {_BODY_TIMEOUT_S:g} s") from None
        try:
            return b"".join(parts).decode()
        except UnicodeDecodeError:
            raise BadRequest("bad_request", "the body is not UTF-8") from None

    async def _send(
        self, identity: Identity, op: str, topic: str, fields: dict[str, Any], client: str
    ) -> asyncio.Future[_Answer]:
        """Publish one command; returns the future of its answer."""
        outcome: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()

        def answer(_type: str | None, ack: Ack | None, error: Exception | None) -> None:
            if not outcome.done():
                outcome.set_result(_failure(error) if error is not None else _answer(ack))

        try:
            await self._gateway.publishing.publish(identity, op, topic, fields, client=client, on_answer=answer)
        except Exception as error:  # noqa: BLE001 - Each command has an answer.
            outcome.set_result(_failure(error))
        return outcome


_MISSING: Final[_Answer] = {
    "status": "failure",
    "reason": "AcksMissing",
    "detail": "no ack came; the outcome is not known",
}


def _failure(error: Exception) -> _Answer:
    if not isinstance(error, SowstreamError):
        log.error("a publish failed", exc_info=error)
        return {"status": "failure", "reason": "internal", "detail": "the gateway's log has the details"}
    reason, detail = describe(error)
    return {"status": "failure", "reason": reason, "detail": detail}


def _answer(ack: Ack | None) -> _Answer:
    if ack is None or ack.status == "success":
        key, reason = (None, None) if ack is None else (ack.sow_key, ack.reason)
        return {"status": "success", "reason": reason, "sow_key": key}
    reason, _, detail = (ack.reason or "").partition(":")
    return {"status": "failure", "reason": reason, "detail": detail.strip()}
