"""The features of a topic, its copies and its subscriptions, with their values, and the pairs that cannot meet."""

from __future__ import annotations

from tests.programs.array.pairs import Factors, Forbidden
from tests.programs.oracle.rules import RULES

TYPES = ("json", "avro", "msgpack", "bson", "nvfix", "fix", "xml", "composite-local")
FLAT = ("nvfix", "fix")
TEXTS = ("nvfix", "fix", "xml")
UNTYPED = ("json", "composite-local", *TEXTS)

VALUES = {
    "type": TYPES,
    "key": ("field", "number", "nested", "deep", "several", "explicit", "keyless", "spelled"),
    "kind": ("integer", "double", "decimal", "nan"),
    "rule": ("none", *RULES),
    "call": ("sow", "subscribe", "delta_subscribe", "sow_and_subscribe", "sow_and_delta_subscribe"),
    "filter": ("none", "equality", "range", "is_null", "like"),
    "group": ("none", "number", "iso_time", "native_time"),
    "command": ("delta", "publish", "allow-merge", "allow_merge"),
    "guarantee": ("transactions", "aborts", "crashes", "at_least_once"),
    "conflation": ("none", "fixed", "no_conflate", "filter"),
    "partition": ("alone", "move", "reject", "accept"),
    "rejection": ("none", "undecodable", "too_deep", "too_large"),
    "steps": ("none", "preprocess", "enrich", "both"),
    "nulls": ("ignore", "set", "remove"),
    "depth": ("any", "1", "2"),
    "expiration": ("none", "topic", "own"),
    "option": ("none", "oof", "no_empties"),
    "order": ("none", "order_by", "top_n"),
    "pace": ("none", "interval", "conflation_key"),
    "sequence": ("none", "repeats"),
    "remove": ("none", "some"),
    "correlation": ("none", "some"),
    "expectation": ("none", "some"),
    "queue": ("none", "all", "filter"),
    "select": ("none", "some"),
}
"""The factors with their values; `layout`, `history` and `play` explain the values where they use them."""


def _not(reason: str, **values: str | tuple[str, ...]) -> Forbidden:
    sets = {name: frozenset([value] if isinstance(value, str) else value) for name, value in values.items()}
    return Forbidden(sets, reason)


FORBIDDEN = (
    _not("a record of the type has no objects in it", type=FLAT, key=("nested", "deep")),
    _not("a record of the type has no objects in it", type=FLAT, depth=("1", "2")),
    _not("a record of the type has no objects in it", type=FLAT, rejection="too_deep"),
    _not("the schema says how deep a record is", type="avro", rejection="too_deep"),
    _not("the type has no null", type=TEXTS, nulls=("set", "remove")),
    _not("the type has no NaN", type=UNTYPED, kind="nan"),
    _not("the type has no decimal", type="msgpack", kind="decimal"),
    _not("the type has no kind of its own for a time", type=UNTYPED, group="native_time"),
    _not("an option of delta subscriptions", option="no_empties", call=("sow", "subscribe", "sow_and_subscribe")),
    _not("nothing follows a snapshot", option="oof", call="sow"),
    _not("nothing follows a snapshot", pace=("interval", "conflation_key"), call="sow"),
    _not("it is for whole records", pace="conflation_key", call=("delta_subscribe", "sow_and_delta_subscribe")),
    _not("it is for subscriptions without oof", pace="conflation_key", option=("oof", "no_empties")),
    _not("it is for subscriptions without a window", pace="conflation_key", order="top_n"),
    _not("it orders a snapshot", order="order_by", call=("subscribe", "delta_subscribe")),
    _not(
        "a repeat of a keyless record is recognised by its sequence alone",
        guarantee="at_least_once", key="keyless", sequence="none",
    ),
)  # fmt: skip

FACTORS = Factors(VALUES, FORBIDDEN)
