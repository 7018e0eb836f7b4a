"""Texts that users, Kafka and file systems keep for Sowstream, as this checkout writes them."""

from __future__ import annotations

from typing import Final

from processor.client.feeds.bookmark import token
from processor.codec.json import JsonCodec
from processor.gateway.feeds.bookmark_text import places_text, query_hash
from processor.hosting.commit_metadata import CommitMetadata, Ends
from processor.merge import KeyFields
from processor.subscriptions import SubscriptionSpec, Topic
from processor.subscriptions.request.subscribe_options import parse_options
from processor.subscriptions.resume import Bookmark

TOPIC_ID: Final = "KyVL8zLdTQa1Xz0v1cVw+A"
"""Kafka's id of the topic of all bookmarks."""
BOOKMARK: Final = Bookmark({0: 1042, 1: 998}, {0: 1042, 1: 1003})
"""The place of the gateway's bookmarks."""
_QUERIES: Final[dict[str, tuple[str | None, str]]] = {
    "all": (None, ""),
    "filter": ("/qty > 10 AND /state = 'new'", "oof"),
    "window": ("/qty > 10", "order_by=/px DESC,top_n=20,skip_n=5,select=[-/,+/id,+/px]"),
}
"""Filter and options of some queries, by name."""


def spec(query: str) -> SubscriptionSpec:
    """Return one of the queries as the gateway has it."""
    text, options = _QUERIES[query]
    topic = Topic("orders", JsonCodec(), KeyFields(("/id",)))
    parsed = parse_options(options, snapshot=True, live=True, delta=False)
    return SubscriptionSpec(topic, text, parsed, snapshot=True, live=True, delta=False)


def texts() -> dict[str, str]:
    """Return each text by its name."""
    places = places_text(TOPIC_ID, BOOKMARK)
    return {
        "client bookmark": token(TOPIC_ID, {0: 1042, 1: 998, 2: 1003}),
        **{f"gateway bookmark, {name}": f"{query_hash(spec(name))}.{places}" for name in _QUERIES},
        "offset metadata, exactly once": str(CommitMetadata(None, "seen 4800")),
        "offset metadata, at least once": str(CommitMetadata(Ends(60, 7), "")),
        "offset metadata, at least once with a note": str(CommitMetadata(Ends(60, 7), "seen 4800")),
    }
