"""The text of a subscription's bookmark, as clients keep it.

::

    1a2b3c4d5e6f.KyVL8zLdTQa1Xz0v1cVw3A.1042.998-1003
    query        topic id               partition 0, partition 1: all before 998, nothing from 1003 on was delivered
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError
from processor.subscriptions.request.subscribe_options import Options
from processor.subscriptions.resume import Bookmark

if TYPE_CHECKING:
    from processor.subscriptions import SubscriptionSpec

_TEXT: Final = re.compile(
    r"([0-9a-f]{12})\.([A-Za-z0-9_-]{1,64})\.((?:[0-9]{1,19}(?:-[0-9]{1,19})?)(?:\.[0-9]{1,19}(?:-[0-9]{1,19})?)*)"
)
_URL_SAFE: Final = str.maketrans("+/=", "-__")
_WITHOUT_EFFECT: Final = frozenset(("conflation", "oof", "no_empties", "timestamp", "send_keys"))
"""Options that change how updates are delivered, and not which records and fields a client holds."""
TEXT_CHARACTERS_MAX: Final = 65_536
"""Longest bookmark."""
REFETCH: Final = "refetch"
"""In place of the bookmark of a subscription that begins again, until its snapshot was sent: an earlier bookmark would
lead on from records that its client has dropped."""


def query_hash(spec: SubscriptionSpec) -> str:
    """A name of a query: two subscriptions with the same one hold the same records and fields at the same place."""
    entitlement = "" if spec.entitlement is None else spec.entitlement.text
    filter_text = "" if spec.filter is None else spec.filter.text
    parts = (filter_text, entitlement, _shaping_options(spec.options), spec.builder.builds_deltas)
    return hashlib.blake2b(repr(parts).encode(errors="surrogatepass"), digest_size=6).hexdigest()


def _shaping_options(options: Options) -> list[tuple[str, object]]:
    """The options that decide which records and fields a client holds, where they are not the default.

    An option that a later version adds therefore leaves the hashes of all earlier queries as they are.
    """
    return sorted(
        (name, value)
        for name, value in options._asdict().items()
        if name not in _WITHOUT_EFFECT and value != Options._field_defaults[name]
    )


def places_text(topic_id: str, bookmark: Bookmark) -> str:
    """The part of a bookmark that all queries share."""
    low, high = bookmark
    numbers = sorted(low)
    places = ".".join(
        str(low[number]) if low[number] == high[number] else f"{low[number]}-{high[number]}" for number in numbers
    )
    return f"{topic_id.translate(_URL_SAFE)}.{places}"


def read_bookmark(text: str, query: str, topic_id: str, positions: Mapping[int, int]) -> Bookmark | str:
    """The bookmark of a text, or the reason for which it cannot be resumed.

    Args:
        text: the text.
        query: the query that is to be resumed.
        topic_id: the id of the topic now.
        positions: the positions of the topic now.

    Raises:
        ConfigurationError: it is no bookmark.
    """
    if text == REFETCH:
        return "the snapshot was not sent to its end"
    match = _TEXT.fullmatch(text) if len(text) <= TEXT_CHARACTERS_MAX else None
    if match is None:
        raise ConfigurationError(f"resume: {text!r:.100} is not a bookmark")
    if match[2] != topic_id.translate(_URL_SAFE):
        return "the topic was made anew"
    if match[1] != query:
        return "the bookmark belongs to another query, or to other rights"
    places = [place.partition("-") for place in match[3].split(".")]
    if len(places) != len(positions):
        return "the topic has another number of partitions"
    low = {number: int(place[0]) for number, place in zip(sorted(positions), places, strict=True)}
    high = {number: int(place[2] or place[0]) for number, place in zip(sorted(positions), places, strict=True)}
    if any(low[number] > high[number] for number in low):
        raise ConfigurationError(f"resume: {text!r:.100} is not a bookmark")
    if any(high[number] > positions[number] for number in high):
        return "the bookmark is ahead of the topic's view"
    return Bookmark(low, high)
