"""The calls that subscribe: their form, and their arguments by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.client.subscribe.stream import OnMessage


class Form(NamedTuple):
    """The kind of a call: `sow`, `subscribe`, `sow_and_subscribe`, `delta_subscribe` or `sow_and_delta_subscribe`."""

    snapshot: bool
    """True if it delivers the state of the world first."""
    live: bool
    """True if it delivers updates."""
    delta: bool
    """True if updates are delivered as deltas."""


class SubscriptionArguments(TypedDict, total=False):
    """Arguments by name of each subscription of a connection; all but `sub_id` may stand in the options string too."""

    select: str | Sequence[str] | None
    """The fields that are delivered, such as `-/,+/id,+/a/b`: the most specific rule wins; the others are included."""
    conflation: str | float | None
    """Time of conflation, `500ms` or seconds; `auto`: until they are taken; `none`: never."""
    conflation_key: str | Sequence[str] | None
    """Paths, such as `/a,/b`: records equal in them are conflated as one; full records only, with `conflation`."""
    grouping: str | Sequence[str] | None
    """Paths, such as `/customer`: with `projection`, messages are about groups of records that are equal in them."""
    projection: str | Sequence[str] | None
    """The fields of each group, such as `SUM(/qty) AS /qty`, in the language of views."""
    order_by: str | Sequence[str] | None
    """The order of the snapshot and of `top_n`, such as `/price DESC,/id`."""
    top_n: int | None
    """The size limit: only the first `top_n` records in that order; updates move records in and out."""
    skip_n: int | None
    """The number of records in that order that are left out before the first."""
    sub_id: str | None
    """Its name, listed in its messages; a named subscription also accepts others that need the state of the world."""


class StreamArguments(SubscriptionArguments, total=False):
    """Arguments by name of a subscription with a stream of its own."""

    bookmark: str | None
    """Begin of a replay: `epoch`, `now`, an ISO 8601 time, or a message's `bookmark`; `subscribe` only."""
    timeout_s: float | None
    """It ends when no message came for so long."""
    on_message: OnMessage | None
    """Called with each message, on a thread of its own; without it the subscription is iterated over, or awaited."""
