"""The calls that subscribe: which one it is, and what it takes by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from processor.client.subscribe.stream import OnMessage


class Form(NamedTuple):
    """Which of the calls it is."""

    snapshot: bool
    """Whether it delivers the state of the world first."""
    live: bool
    """Whether it goes on from there."""
    delta: bool
    """Whether updates are delivered as deltas."""


class Asked(TypedDict, total=False):
    """Arguments by name of each subscription of a connection; all but `sub_id` may stand in the options string too."""

    select: str | Sequence[str] | None
    """The fields that are delivered, such as `-/,+/id,+/a/b`: the most specific rule wins; the others are included."""
    conflation: str | float | None
    """How long updates of a record are folded, `500ms` or seconds; `auto`: until they are taken; `none`: never."""
    conflation_key: str | Sequence[str] | None
    """Paths, such as `/a,/b`: records that agree in them are folded like one; whole records only, with `conflation`."""
    order_by: str | Sequence[str] | None
    """The order of the snapshot or the window, such as `/price DESC,/id`."""
    top_n: int | None
    """Only so many of that order; updates move records in and out."""
    skip_n: int | None
    """Without so many of its first."""
    sub_id: str | None
    """Its name, which its messages have; with it, others may be added that need the state of the world."""


class Wanted(Asked, total=False):
    """Arguments by name of a subscription with a stream of its own."""

    bookmark: str | None
    """Replay from here on: `epoch`, `now`, an ISO 8601 time, or a message's `bookmark`; `subscribe` only."""
    timeout_s: float | None
    """It ends when no message came for so long."""
    on_message: OnMessage | None
    """Called with each message, on a thread of its own; without it the subscription is iterated over, or awaited."""
