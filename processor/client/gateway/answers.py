"""The messages and the errors that a gateway's answers stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from processor.errors import BrokerUnavailable, ConfigurationError, SowstreamError, Stop
from processor.subscriptions import Message

LATER: Final = frozenset(("unavailable", "too_many"))
"""The reasons that say "not now": the same request may succeed later."""
_WRONG: Final = frozenset(("bad_request", "bad_filter", "not_entitled", "limit", "unknown_op", "unsupported"))
_FIELDS: Final = frozenset(Message._fields)


def message_of(fields: Mapping[str, Any], *, names_subscriptions: bool) -> Message:
    """A message, as the client delivers it."""
    known = {name: value for name, value in fields.items() if name in _FIELDS}
    known["removed"] = tuple(known.get("removed", ()))
    if names_subscriptions:
        known["sub_ids"] = tuple(fields.get("subs", ()))
    return Message(**known)


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
