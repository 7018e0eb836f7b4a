"""The hundred requests of `hostile`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

HTTP: Final = "HTTP"
WEBSOCKET: Final = "WebSocket"

COSTLY: Final = (
    "LENGTH(UPPER(REVERSE(REPLACE(REPLACE(REPLACE(CONCAT(/note, /note), 'a', 'bbb'), 'b', 'ccc'), 'c', 'dd')))) < 0"
)
"""A filter of as much work as may be asked for, about."""
REGEXP: Final = "/note LIKE '(a|b|c|d)+(e|f|g|h)+.*(x|y|z)+q'"
LONG: Final = " OR ".join(f"/note = 'n{number}'" for number in range(600))
FULL: Final = "/id IN (" + ",".join(f"'{number:06}'" for number in range(7_000)) + ")"


class Hostile(NamedTuple):
    """One request, or several at once."""

    name: str
    """Its name."""
    way: str
    """HTTP or WebSocket."""
    frames: tuple[str, ...]
    """The path of a GET, or frames."""
    answers: int = 1
    """The requests in it, each of which is answered."""
    token: str = "t-mean"
    """The token of its user."""


def get(name: str, kind: str = "sow", **query: Any) -> Hostile:
    """A GET."""
    return Hostile(f"GET {kind} {name}", HTTP, (f"/v1/topics/orders/{kind}?{urlencode(query)}",))


def ws(name: str, *asked: dict[str, Any]) -> Hostile:
    """Requests of a WebSocket, in one frame."""
    frame = json.dumps([{"id": f"r{number}", "topic": "orders", **one} for number, one in enumerate(asked)])
    return Hostile(f"WS {name}", WEBSOCKET, (frame,), len(asked))


def subscribe(text: str | None = None, op: str = "sow_and_subscribe", **options: Any) -> dict[str, Any]:
    """A subscribing request."""
    return {"op": op, **({"filter": text} if text else {}), "options": options}


def replaced(name: str, first: dict[str, Any], **changes: Any) -> Hostile:
    """A subscription that is replaced at once, and again later."""
    frames = [json.dumps({"id": "s", "topic": "orders", **first})]
    frames += [json.dumps({"op": "replace", "id": f"x{number}", "sub": "s", **changes}) for number in range(3)]
    return Hostile(f"WS replace {name}", WEBSOCKET, tuple(frames), 4)


_FILTERS: Final = {
    "all": None,
    "nothing": "/qty < -5",
    "half": "/qty > 50000",
    "clock": "UNIX_TIMESTAMP() > 0 AND /qty >= 0",
    "clock, nothing": "UNIX_TIMESTAMP() < 0",
    "costly": COSTLY,
    "regular expression": REGEXP,
    "long": LONG,
    "as long as may be": FULL,
    "indexed half": "/state IN ('new', 'open')",
}
_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "order_by": {"order_by": "/qty"},
    "order_by of work": {"order_by": "REVERSE(UPPER(/note)) DESC, /qty"},
    "window": {"order_by": "/qty", "top_n": 100},
    "deep window": {"order_by": "/px DESC", "top_n": 100, "skip_n": 150_000},
    "window of all": {"order_by": "/qty", "top_n": 200_000},
    "groups": {"projection": "SUM(/qty) AS /qty, COUNT(*) AS /n", "grouping": ["/desk"]},
    "group of each": {"projection": "MAX(/qty) AS /qty", "grouping": ["/id"]},
    "one group": {
        "projection": "MIN(/qty) AS /low, MAX(/px) AS /high, COUNT_DISTINCT(/note) AS /n",
        "grouping": ["/x"],
    },
    "conflation_key": {"conflation": "1s", "conflation_key": ["/desk"]},
    "conflation_key of each": {"conflation": "1s", "conflation_key": ["/note"]},
    "oof": {"oof": True},
    "select": {"select": "+" + ",+".join(f"/f{number}" for number in range(1_500))},
}


def requests(records: int) -> Iterator[Hostile]:
    """All of them, for a topic with so many records."""
    for name, text in _FILTERS.items():
        if text == FULL:
            continue  # A head has less.
        yield get(f"of {name}", **({"filter": text} if text else {}))
        yield get(f"by order of {name}", order_by="/qty", **({"filter": text} if text else {}))
    for name, options in _OPTIONS.items():
        op = "sow_and_delta_subscribe" if name == "oof" else "sow_and_subscribe"
        yield ws(name, subscribe(op=op, **options))
        yield ws(f"{name} of half", subscribe("/qty > 50000", op=op, **options))
        yield ws(f"{name} of a costly filter", subscribe(f"NOT {COSTLY}", op=op, **options))
    for name, text in _FILTERS.items():
        if name != "all":
            yield ws(f"of {name}", subscribe(text))
    for name in ("half", "costly", "indexed half", "clock"):
        yield ws(f"20 at once of {name}", *[subscribe(f"{_FILTERS[name]} AND /px >= 0") for _ in range(20)])
    yield replaced("all by half", subscribe(), filter="/qty > 50000")
    yield replaced("half by the other half", subscribe("/qty > 50000"), filter="/qty <= 50000")
    yield replaced("half by costly", subscribe("/qty > 50000"), filter=COSTLY)
    yield replaced("nothing by all", subscribe("/qty < -5"), filter="")
    yield replaced("all by a window", subscribe(), options={"order_by": "/qty", "top_n": 100})
    yield replaced("a window by all", subscribe(order_by="/qty", top_n=100), options={"order_by": None, "top_n": None})
    yield replaced("all by the clock", subscribe(), filter="UNIX_TIMESTAMP() > 0")
    yield replaced("all by conflation_key", subscribe(), options={"conflation": "1s", "conflation_key": ["/desk"]})
    yield replaced("select", subscribe(), options={"select": "+/id,+/qty"})
    yield ws("first use of a memo index", *[subscribe(f"/desk = 'd{n}'", "sow") for n in range(3)])
    yield ws(
        "memo indexes of five paths",
        *[subscribe(f"/{path} = '{n}'", "sow") for path in ("note", "px", "qty", "state", "none") for n in range(3)],
    )
    yield ws(
        "15 filters of 65,536 characters",
        *[subscribe((LONG + f" OR /n = {n} OR ").ljust(65_500, " ") + "/q = 1") for n in range(15)],
    )
    yield ws("15 lists of 65,536 characters", *[subscribe(FULL[:-1] + f",'{n}')") for n in range(15)])
    yield ws("100 live costly filters", *[subscribe(f"{COSTLY} OR /n = {n}", "subscribe") for n in range(100)])
    yield ws("100 live regular expressions", *[subscribe(f"{REGEXP} OR /n = {n}", "subscribe") for n in range(100)])
    yield ws(
        "100 live select lists",
        *[
            subscribe(None, "delta_subscribe", select="+" + ",+".join(f"/f{m}" for m in range(n, n + 300)))
            for n in range(100)
        ],
    )
    yield ws("50 live orders", *[subscribe(f"/qty > {n}", order_by=f"/qty + {n}", top_n=10) for n in range(50)])
    yield ws(
        "20 live projections",
        *[
            subscribe(f"/qty > {n}", projection="MIN(/qty) AS /q, SUM(/px) AS /p", grouping=["/desk"])
            for n in range(20)
        ],
    )
    yield ws("a delete by a costly filter", {"op": "sow_delete", "filter": COSTLY})
    yield ws("a delete by a filter that matches nothing", {"op": "sow_delete", "filter": "/qty < -5"})
    yield ws("a delete of 50,000 keys", {"op": "sow_delete", "keys": [f"none-{n}" for n in range(50_000)]})
    yield ws("15,000 pings", *[{"op": "ping", "topic": None} for _ in range(15_000)])
    yield ws("5,000 wrong requests", *[{"op": "sow", "filter": "("} for _ in range(5_000)])
    yield ws("3,000 publishes", *[{"op": "publish", "data": {"id": f"new-{n}"}} for n in range(3_000)])
    deep = "[" * 60 + "]" * 60
    yield Hostile("WS a frame of lists", WEBSOCKET, ("[" + ",".join([deep] * 8_000) + "]",))
    yield Hostile(
        "WS a frame of numbers",
        WEBSOCKET,
        (
            json.dumps(
                {
                    "op": "publish",
                    "id": "1",
                    "topic": "orders",
                    "data": {"id": "big", "list": [number / 7 for number in range(50_000)]},
                }
            ),
        ),
    )
    yield Hostile(
        "WS a frame of escapes",
        WEBSOCKET,
        (
            json.dumps(
                {"op": "publish", "id": "1", "topic": "orders", "data": {"id": "big", "text": "\u00e9\n" * 60_000}}
            ),
        ),
    )
    yield get("of costly, as events", "subscribe", filter=COSTLY)
    yield get("by order, as events", "subscribe", order_by="/qty")
    yield get("projection, as events", "subscribe", projection="SUM(/qty) AS /qty", grouping="/desk")
    yield get("select of 1,000 fields", select="+" + ",+".join(f"/f{number}" for number in range(1_000)))
    yield get("of a parenthesis", filter="(" * 5_000)
    yield get("a page far behind", order_by="/note", skip_n=190_000, top_n=10)
    yield Hostile("GET topics", HTTP, ("/v1/topics",))
    yield Hostile("GET metrics", HTTP, ("/metrics",))
    narrow = ({"filter": "/desk = 'd7'"}, {"filter": "/qty > -5"}, {"keys": [f"none-{n}" for n in range(50_000)]})
    for fields in narrow:
        delete = ws(f"a delete by {', '.join(fields)} under a read filter", {"op": "sow_delete", **fields})
        yield delete._replace(token="t-narrow")
    assert records
