"""The endpoints that publish: a body of one record, or of lines of JSON, and an ack for each.

A body may have an idempotency key: another body under the same key is refused.

The workers' marks know which lines of a body were taken (merge.md, Sequence), and the name of a mark has the digest of
the body, so that no line of another body is ever taken for one of them. The file here lets a gateway say that a key was
used before. It is shared by the processes of a gateway and outlives them; gateways on other machines have their own.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
import zlib
from codecs import BOM_UTF8
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from processor.client.gateway.answers import LATER
from processor.codec.json_value import to_json_line
from processor.errors import DiskUnusable, SowstreamError
from processor.gateway.access.identity import Identity, is_allowed
from processor.gateway.access.requests import PUBLISHING, BadRequest, read_json
from processor.gateway.commands.publishing import describe
from processor.gateway.commands.turns import BoundedExecutor, NumberOrder
from processor.gateway.endpoints import identity_of
from processor.gateway.problems import RETRY
from processor.wire.publisher_headers import GATEWAY_ARGUMENTS

if TYPE_CHECKING:
    from processor.gateway.gateway import Gateway
    from processor.record import Value
    from processor.wire.ack import Ack


CHARACTERS_MAX: Final = 200
"""Longest key."""
KEPT_S: Final = 24 * 3600
"""A key is kept as long as the marks of its lines."""
_KEYS_MAX: Final = 1_000_000
_BUSY_TIMEOUT_S: Final = 5.0
_TIDY_EVERY: Final = 1_000
"""Keys that are noted between two removals of old ones."""


class IdempotencyKeys:
    """The keys of the last day with the digests of their bodies, in a file. One thread at a time."""

    def __init__(self, file: Path) -> None:
        """Begin without opening the file: most gateways get no keys.

        Args:
            file: the file, which is created with the first key.
        """
        self._file = file
        self._keys: sqlite3.Connection | None = None
        self._noted = 0

    def note(self, key: str, digest: str) -> None:
        """Note the use of a key.

        Args:
            key: the key, with its user and topic.
            digest: the digest of the request.

        Raises:
            BadRequest: `key_reused`: it was used for another request.
            DiskUnusable: the file cannot be read or written.
        """
        now_s = int(time.time())
        try:
            keys = self._opened()
            with keys:
                if self._noted % _TIDY_EVERY == 0:
                    keys.execute("DELETE FROM keys WHERE used_s < ?", (now_s - KEPT_S,))
                    keys.execute("DELETE FROM keys WHERE rowid <= (SELECT max(rowid) FROM keys) - ?", (_KEYS_MAX,))
                keys.execute("INSERT OR IGNORE INTO keys (key, digest, used_s) VALUES (?, ?, ?)", (key, digest, now_s))
                (first_digest,) = keys.execute("SELECT digest FROM keys WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self.close()
            raise DiskUnusable(f"{self._file}: the idempotency keys cannot be kept: {error}") from None
        self._noted += 1
        if first_digest != digest:
            raise BadRequest("key_reused", "this Idempotency-Key was used for another request; choose a new one")

    def close(self) -> None:
        """Close the file."""
        if self._keys is not None:
            self._keys.close()
            self._keys = None

    def _opened(self) -> sqlite3.Connection:
        if self._keys is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._keys = sqlite3.connect(self._file, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
            self._keys.execute("PRAGMA journal_mode = WAL")
            self._keys.execute("PRAGMA synchronous = NORMAL")
            self._keys.execute("CREATE TABLE IF NOT EXISTS keys (key TEXT UNIQUE, digest TEXT, used_s INTEGER)")
        return self._keys


log = structlog.stdlib.get_logger("sowstream.gateway")

_KEYS_WAITING_MAX: Final = 1_000
"""Idempotency keys that wait for their file."""
_ACK_TIMEOUT_S: Final = 60.0
_BODY_TIMEOUT_S: Final = 30.0
_LINES_MAX: Final = 10_000
"""Lines of a body."""
_LINES_IN_TURN: Final = 100
"""Lines of a body that are carried out before others have their turn: those that are refused wait for nothing."""
_GZIP: Final = zlib.MAX_WBITS | 16

_Answer: TypeAlias = dict[str, Any]
"""The ack of one command, as the client gets it."""


class PublishEndpoint:
    """`POST /v1/topics/{topic}/{op}`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        config = gateway.config
        self._keys = IdempotencyKeys(Path(config.state_dir) / config.application_id / "idempotency-keys.sqlite")
        self._executor = BoundedExecutor("idempotency keys", threads=1, waiting_max=_KEYS_WAITING_MAX)

    async def publish(self, request: Request) -> Response:
        """Publish one record, or lines of JSON; answers with an ack for each."""
        gateway = self._gateway
        op, topic = request.path_params["op"], request.path_params["topic"]
        identity = await identity_of(gateway, request, op if op in PUBLISHING else None)
        if op not in PUBLISHING:
            raise BadRequest("not_found", "there is no such endpoint")
        if not is_allowed(request.headers.get("origin"), request.headers.get("host"), gateway.settings.origins):
            raise BadRequest("not_entitled", "this origin may not publish")
        allowance = gateway.allowances.of(identity)
        allowance.bodies.take()
        try:
            rows = await self._rows(request, op)
        finally:
            allowance.bodies.give_back()
        allowance.publishes.spend(len(rows))
        client = await self._client(request, identity, rows)
        answers: list[asyncio.Future[_Answer]] = []
        numbers = NumberOrder()
        for number, row in enumerate(rows, 1):
            numbered = row if client is None else {**row, "sequence": number}
            fields = {"ack": "persisted", **numbered}
            answers.append(await self._send(identity, op, topic, fields, client or "http", numbers))
            if number % _LINES_IN_TURN == 0:
                await asyncio.sleep(0)
        if answers:
            await asyncio.wait(answers, timeout=_ACK_TIMEOUT_S)
        acks = [answer.result() if answer.done() else _MISSING for answer in answers]
        status = _status(acks, is_safe_to_repeat=client is not None)
        body = "".join(f"{to_json_line(ack)}\n" for ack in acks)
        return Response(body, status, RETRY.get(status), media_type="application/x-ndjson")

    async def _client(self, request: Request, identity: Identity, rows: list[dict[str, Any]]) -> str | None:
        """The name under which the lines of a request with an `Idempotency-Key` are numbered; None: it has no key.

        Raises:
            BadRequest: `key_reused`: the key was used for another request.
        """
        key = request.headers.get("idempotency-key")
        if key is None:
            return None
        if not 0 < len(key) <= CHARACTERS_MAX:
            raise BadRequest("bad_request", f"an Idempotency-Key has 1 to {CHARACTERS_MAX} characters")
        asked = to_json_line({"op": request.path_params["op"], "rows": rows})
        digest = hashlib.sha256(asked.encode(errors="surrogatepass")).hexdigest()[:32]
        place = to_json_line([identity.user, request.path_params["topic"], key])
        await self._executor.run(self._keys.note, place, digest)
        return f"key/{key}/{digest}"

    async def _rows(self, request: Request, op: str) -> list[dict[str, Any]]:
        """The commands of a body: the fields of each."""
        body = await self._body(request)
        lines = await self._gateway.parsed(body, lambda: _lines(body))
        if not lines and op != "sow_delete":
            raise BadRequest("bad_request", "the body has no record")
        query = request.query_params
        common: dict[str, Any] = {"key": query["key"]} if "key" in query else {}
        for name, argument in GATEWAY_ARGUMENTS.items():
            if name in query:
                try:
                    common[name] = argument.kind(query[name])
                except ValueError:
                    raise BadRequest("bad_request", f"{name} is a number") from None
        if op == "sow_delete":
            return [{**common, **({"data": line} if line else {})} for line in lines or [{}]]
        return [{**common, "data": line} for line in lines]

    async def _body(self, request: Request) -> bytes:
        """The body of a request, decompressed, without a byte order mark."""
        encoding = request.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip"):
            raise BadRequest("unsupported_media", f"Content-Encoding: {encoding!r:.40} is not read; send gzip, or none")
        size, size_max, parts = 0, self._gateway.limits.message_bytes, []
        announced = request.headers.get("content-length", "0")
        if int(announced) > size_max:  # The server has checked that it is a number.
            raise _too_large(size_max)
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                async for part in request.stream():
                    size += len(part)
                    if size > size_max:
                        raise _too_large(size_max)
                    parts.append(part)
        except (TimeoutError, ClientDisconnect):
            raise BadRequest("too_slow", f"the body did not come within {_BODY_TIMEOUT_S:g} s") from None
        body = b"".join(parts)
        if encoding == "gzip":
            body = _decompressed(body, size_max)
        return body.removeprefix(BOM_UTF8)

    async def _send(
        self, identity: Identity, op: str, topic: str, fields: dict[str, Any], client: str, numbers: NumberOrder
    ) -> asyncio.Future[_Answer]:
        """Publish one command; returns the future of its answer."""
        outcome: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()

        def answer(_type: str | None, ack: Ack | None, error: Exception | None) -> None:
            if not outcome.done():
                outcome.set_result(_failure(error) if error is not None else _answer(ack))
                numbers.note(topic, fields.get("sequence"), outcome.result()["reason"])

        try:
            await self._gateway.publishing.publish(
                identity, op, topic, fields, client=client, numbers=numbers, on_answer=answer
            )
        except Exception as error:  # noqa: BLE001 - Each command has an answer.
            answer(None, None, error)
        return outcome


def _status(acks: list[_Answer], *, is_safe_to_repeat: bool) -> int:
    """The status for some acks: 503 only if clients that then send all of them again, unasked, do nothing twice."""
    failures = [ack["reason"] for ack in acks if ack["status"] != "success"]
    if not failures:
        return 200
    if LATER.issuperset(failures) and (is_safe_to_repeat or len(failures) == len(acks)):
        return 503
    return 403 if len(acks) == 1 and failures == ["not_entitled"] else 422


def _lines(body: bytes) -> list[Value]:
    """The values of a body: lines of JSON, or one record."""
    lines = [(number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    try:
        values = [read_json(line, f"line {number}") for number, line in lines[:_LINES_MAX]]
    except BadRequest as error:
        try:
            return [read_json(body, "the body")]
        except BadRequest:
            raise BadRequest("bad_request", f"neither a record nor lines of JSON: {error}") from None
    if len(lines) > _LINES_MAX:
        raise BadRequest("too_large", f"a body has at most {_LINES_MAX} lines; send several")
    return values


def _decompressed(body: bytes, size_max: int) -> bytes:
    """The content of a body in gzip, of one part or of several."""
    content = bytearray()
    while body:
        part = zlib.decompressobj(_GZIP)
        try:
            content += part.decompress(body, size_max + 1 - len(content))
        except zlib.error as error:
            raise BadRequest("bad_request", f"the body is not gzip: {error}") from None
        if len(content) > size_max:
            raise _too_large(size_max)
        if not part.eof:
            raise BadRequest("bad_request", "the body is not gzip: its end is missing")
        body = part.unused_data
    return bytes(content)


def _too_large(size_max: int) -> BadRequest:
    return BadRequest("too_large", f"a request has at most {size_max} bytes, also decompressed")


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
        key, reason, version = (None, None, None) if ack is None else (ack.sow_key, ack.reason, ack.version)
        return {
            "status": "success",
            "reason": reason,
            "sow_key": key,
            **({} if version is None else {"version": version}),
        }
    reason, _, detail = (ack.reason or "").partition(":")
    return {"status": "failure", "reason": reason, "detail": detail.strip()}
