"""The tokens that a client shows to a gateway, and the messages and errors that the gateway's answers stand for."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeAlias, TypeVar

from processor.errors import BrokerUnavailable, ConfigurationError, SowstreamError, Stop
from processor.subscriptions import Message

Token: TypeAlias = "str | Callable[[], str] | None"  # noqa: S105 - It is a type.
"""A token, or a function that gives one: for each connection, and before a JSON Web Token expires."""
T = TypeVar("T")

_RENEW_SHARE: Final = 0.8
"""The part of its life after which a token is renewed."""


class Tokens:
    """Gives the tokens of one connection."""

    def __init__(self, token: Token, timeout_s: float) -> None:
        """Take the token, or the function, which has `timeout_s` to give one."""
        self._token = token
        self._timeout_s = timeout_s

    @property
    def may_change(self) -> bool:
        """True if a function gives them."""
        return callable(self._token)

    @property
    def is_none(self) -> bool:
        """True if there is none."""
        return self._token is None

    def current(self) -> str | None:
        """The token, of a function the next one.

        Raises:
            BrokerUnavailable: the function failed, or gave none in time.
        """
        if not callable(self._token):
            return self._token
        try:
            return in_background(self._token).result(self._timeout_s)
        except Exception as error:
            # The type alone: a message may quote the token.
            raise BrokerUnavailable(f"the function for tokens gave none: {type(error).__name__}") from error

    def renewal_s(self, token: str | None) -> float | None:
        """The seconds until a token is to be renewed; None: it need not, or cannot."""
        if not self.may_change or token is None:
            return None
        left_s = _seconds_left(token)
        return None if left_s is None else max(left_s, 0.0) * _RENEW_SHARE


def in_background(call: Callable[[], T]) -> Future[T]:
    """Call a function that may take long on a thread of its own, which does not keep the program from ending."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # Else a caller of asyncio that is cancelled would cancel it.

    def complete() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - It is raised where the result is taken.
            future.set_exception(error)

    threading.Thread(target=complete, name="sowstream-gateway", daemon=True).start()
    return future


def _seconds_left(token: str) -> float | None:
    """The seconds until a JSON Web Token expires; None for other tokens."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return float(claims["exp"]) - time.time()
    except (ValueError, LookupError, TypeError):
        return None


LATER: Final = frozenset(("unavailable", "too_many"))
"""The reasons that say "not now": the same request may succeed later."""
_WRONG: Final = frozenset(("bad_request", "bad_filter", "not_entitled", "limit", "unknown_op", "unsupported"))
_FIELDS: Final = frozenset(Message._fields)


def message_of(fields: Mapping[str, Any], *, names_subscriptions: bool) -> Message:
    """A message, as the client delivers it."""
    values = {name: value for name, value in fields.items() if name in _FIELDS}
    values["removed"] = tuple(values.get("removed", ()))
    if names_subscriptions:
        values["sub_ids"] = tuple(fields.get("subs", ()))
    return Message(**values)


def error_of(answer: Mapping[str, Any]) -> SowstreamError:
    """The error of a failed request."""
    reason = answer.get("reason")
    detail = str(answer.get("detail") or reason or "the request failed")
    if reason in LATER:
        return BrokerUnavailable(detail)
    return ConfigurationError(detail) if reason in _WRONG else Stop(detail)


def is_of_request(reason: str) -> bool:
    """Return whether a reason is about a request, and not about a record that a worker rejected."""
    return reason in _WRONG or reason in LATER
