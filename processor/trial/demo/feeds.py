"""The feeds of the demo: an order desk and currency prices, published at a chosen rate, each on a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from processor.kafka.clients.publisher import Publisher
from processor.record import Command, Headers
from processor.trial.demo.check import Sent
from processor.wire.record_headers import command_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from random import Random


SENT_MS: Final = "sent_ms"
"""Header with the time of publishing. Sowstream does not use it, but passes it on to SOW and delta."""

_TICK_S: Final = 0.02
_FLUSH_TIMEOUT_S: Final = 30.0


class Publication(NamedTuple):
    """One record for a publish topic."""

    key: bytes
    """The Kafka record key."""
    value: bytes | None
    """The message; None for a tombstone."""
    command: Command | None = None
    """The command; None for the topic's default, `delta_publish`."""


class FeedPublisher:
    """One publisher; a single producer keeps the order of its records."""

    def __init__(self, kafka: Mapping[str, str], topic: str, source: Callable[[], Publication]) -> None:
        self._topic = topic
        self._source = source
        self._publisher = Publisher(kafka)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.sent = Sent()
        """The records sent so far."""
        self.error: Exception | None = None
        """The error that ended it early."""

    def send(self, count: int) -> None:
        """Publish the next records at once."""
        for _ in range(count):
            publication = self._source()
            headers: Headers = [(SENT_MS, b"%d" % (time.time_ns() // 1_000_000))]
            if publication.command is not None:
                headers.append(command_header(publication.command))
            self._publisher.send(self._topic, publication.key, publication.value, headers)
            self.sent.take(publication.key.decode(), publication.value, publication.command)

    def start(self, rate: float) -> None:
        """Publish at this rate, in records per second, from now on."""
        self._thread = threading.Thread(target=self._run, args=(rate,), name=f"feed {self._topic}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Stop publishing, and wait until Kafka has everything.

        Raises:
            Stop: a record was not delivered.
        """
        self.cancel()
        self._publisher.flush(_FLUSH_TIMEOUT_S)

    def cancel(self) -> None:
        """Stop publishing, without waiting for delivery."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, rate: float) -> None:
        began_s, already = time.monotonic(), self.sent.count
        # A feed that falls behind does not catch up at once: the rate would be another than the chosen one.
        most = max(1, int(rate * _TICK_S * 5))
        try:
            while not self._stop.wait(_TICK_S):
                due = int((time.monotonic() - began_s) * rate) - (self.sent.count - already)
                if due > most:
                    already -= due - most
                self.send(min(due, most))
        except Exception as error:  # noqa: BLE001 - Raised by the thread that watches the feed.
            self.error = error


OPEN: Final = 150
"""The number of open orders at any time."""
KEPT: Final = 500
"""The number of finished orders that stay; older ones are deleted, to keep the state of the world small."""
_SPOILT_ONE_IN: Final = 150
_AMENDED_ONE_IN: Final = 20

_CUSTOMERS: Final = ("Ada Marsh", "Bo Keller", "Chen Wei", "Dalia Bey", "Emeka Obi", "Freya Lee")
_ITEMS: Final = ("lamp, brass", "desk, oak", "chair, grey", "bookcase", "kettle 1.7 l")
_WAREHOUSES: Final = ("Antwerp", "Gdansk", "Lyon", "Porto")


class OrderDesk:
    """Generates the publications of many orders, one at a time."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._opened = 0
        self._open: list[Iterator[Publication]] = []
        self._done: deque[int] = deque()

    def next(self) -> Publication:
        """The next publication: a step of one of the open orders, a new order, or the deletion of an old one."""
        if len(self._done) > KEPT:
            return self._delete(self._done.popleft())
        if len(self._open) < OPEN:
            self._opened += 1
            self._open.append(self._life(self._opened))
            return next(self._open[-1])
        at = self._random.randrange(len(self._open))
        step = next(self._open[at], None)
        if step is not None:
            return step
        self._open[at] = self._open[-1]
        self._open.pop()
        return self.next()

    def _life(self, number: int) -> Iterator[Publication]:
        """The life of one order: inventory and credit check it in either order, then fulfilment decides."""
        random = self._random
        order: dict[str, Any] = {
            "id": number,
            "customer": random.choice(_CUSTOMERS),
            "item": random.choice(_ITEMS),
            "qty": random.randint(1, 40),
            "state": "new",
        }
        yield _whole(order)
        yield from self._checks(order)
        if random.randrange(_AMENDED_ONE_IN) == 0:
            # A full publish replaces the record: the fields of inventory and credit for the old quantity are gone.
            order["qty"] += random.randint(1, 5)
            yield _whole(order)
            yield from self._checks(order)
        if random.randrange(_SPOILT_ONE_IN) == 0:
            yield Publication(_key(number), b'{"id": %d, "state": "fil' % number)
        if random.random() < 0.2:
            yield _delta(number, state="held")
            # The second delivery: one deeply nested field changes.
            yield _delta(number, inventory={"reserved": order["qty"]})
        yield _delta(number, state="cancelled" if random.random() < 0.1 else "filled")
        self._done.append(number)

    def _checks(self, order: dict[str, Any]) -> Iterator[Publication]:
        random = self._random
        reserved = order["qty"] if random.random() < 0.8 else order["qty"] // 2
        looks = [
            {"inventory": {"warehouse": random.choice(_WAREHOUSES), "reserved": reserved}},
            {"credit": {"limit_ok": random.random() < 0.9, "score": round(random.uniform(300, 850), 1)}},
        ]
        random.shuffle(looks)
        for look in looks:
            yield _delta(order["id"], **look)

    def _delete(self, number: int) -> Publication:
        """Delete an order, by command or by tombstone: both have the same effect."""
        if self._random.random() < 0.5:
            return Publication(_key(number), None)
        return Publication(_key(number), _encode({"id": number}), "sow_delete")


def _whole(order: dict[str, Any]) -> Publication:
    return Publication(_key(order["id"]), _encode(order), "publish")


def _delta(number: int, **changes: Any) -> Publication:
    return Publication(_key(number), _encode({"id": number, **changes}))


def _key(number: int) -> bytes:
    return b"%d" % number


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


_MIDS: Final = {
    "EURUSD": 1.08412, "GBPUSD": 1.26655, "AUDUSD": 0.65321, "NZDUSD": 0.60118, "USDCAD": 1.36907,
    "USDCHF": 0.88214, "EURGBP": 0.85602, "EURCHF": 0.95611, "EURSEK": 11.4285, "EURNOK": 11.6312,
    "USDSEK": 10.5419, "USDNOK": 10.7288, "EURPLN": 4.32175, "USDPLN": 3.98634, "USDSGD": 1.34412,
    "USDJPY": 149.214, "EURJPY": 161.766, "GBPJPY": 188.988, "AUDJPY": 97.471, "CHFJPY": 169.151,
}  # fmt: skip

PAIRS: Final = len(_MIDS)
_WIDE_POINTS: Final = 60
_TIGHT_POINTS: Final = 4
_SHOCK_ONE_IN: Final = 4_000


@dataclass(slots=True)
class _Quote:
    """One pair, in points: integers of its last digit, so that no rounding occurs."""

    pair: str
    digits: int
    mid: int
    width: float = _WIDE_POINTS
    sent: dict[str, Any] | None = None
    """The fields that subscribers have; None before the first publication."""


class PriceFeed:
    """Generates the publications of prices, one at a time."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._quotes = [
            _Quote(pair, digits := len(str(mid).partition(".")[2]), round(mid * 10**digits))
            for pair, mid in _MIDS.items()
        ]
        self._unsent = list(self._quotes)

    def next(self) -> Publication:
        """The next publication: at first every pair in full, then the changed fields of one."""
        quote = self._unsent.pop() if self._unsent else self._random.choice(self._quotes)
        self._move(quote)
        price = _price(quote)
        before, quote.sent = quote.sent, price
        if before is None:
            return Publication(
                quote.pair.encode(), _encode({"pair": quote.pair, **price, "updated": _now_ms()}), "publish"
            )
        moved = {name: value for name, value in price.items() if value != before[name]}
        return Publication(quote.pair.encode(), _encode({"pair": quote.pair, **moved, "updated": _now_ms()}))

    def _move(self, quote: _Quote) -> None:
        """Move a price: mostly by a point or two; after occasional news, the spread widens for a while."""
        if self._random.randrange(_SHOCK_ONE_IN) == 0:
            quote.width = _WIDE_POINTS
            quote.mid += self._random.randint(-40, 40)
        quote.mid += self._random.choice((-1, 0, 0, 1))
        quote.width = max(_TIGHT_POINTS, quote.width * 0.997)


def _price(quote: _Quote) -> dict[str, Any]:
    half = round(quote.width / 2)
    scale = 10**quote.digits
    return {
        "bid": (quote.mid - half) / scale,
        "offer": (quote.mid + half) / scale,
        "spread": 2 * half / scale,
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
