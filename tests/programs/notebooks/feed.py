"""A feed of orders: two instruments, bids and offers around a price that moves, updates that come late."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

INSTRUMENTS: Final = {"ACME": 100.0, "GLOBEX": 42.0}
LATE_MEDIAN_S: Final = 0.05

Command = tuple[bytes, dict[str, Any] | None, dict[str, str]]


class Feed:
    """Makes commands from a seed; the time of an event is that of its making, less its lateness."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._orders: dict[str, dict[str, Any]] = {}
        self._mid = dict(INSTRUMENTS)
        self._count = 0

    def commands(self, count: int) -> Iterator[Command]:
        """The next commands: new orders, amended prices, fills and cancellations, with their Kafka keys."""
        for _ in range(count):
            draw = self._random.random()
            if len(self._orders) < 50 or draw < 0.3:
                yield self._new()
            elif draw < 0.9:
                yield self._update(fills=draw < 0.6)
            else:
                key = self._random.choice(sorted(self._orders))
                del self._orders[key]
                yield key.encode(), None, {}

    def _new(self) -> Command:
        self._count += 1
        key, side = f"o{self._count}", self._random.choice(("buy", "sell"))
        instrument = self._random.choice(sorted(self._mid))
        self._mid[instrument] *= 1 + self._random.gauss(0, 0.0002)
        order = {
            "id": key,
            "instrument": instrument,
            "side": side,
            "price": self._price(instrument, side),
            "open": self._random.randint(1, 40) * 10,
            "state": "working",
        }
        self._orders[key] = order
        return key.encode(), order | self._at(), {"command": "publish"}

    def _update(self, *, fills: bool) -> Command:
        key = self._random.choice(sorted(self._orders))
        order = self._orders[key]
        if not fills:
            change: dict[str, Any] = {"price": self._price(order["instrument"], order["side"])}
        else:
            left = order["open"] - self._random.choice((10, 50, 100))
            change = {"open": left} if left > 0 else {"open": 0, "state": "filled"}
        order |= change
        if order["state"] == "filled":
            del self._orders[key]
        return key.encode(), {"id": key} | change | self._at(), {}

    def _price(self, instrument: str, side: str) -> float:
        """A price on the side's half of the book, in hundredths: most orders are near the middle."""
        distance = 0.02 + self._random.expovariate(1) * self._mid[instrument] * 0.004
        return round(self._mid[instrument] + (distance if side == "sell" else -distance), 2)

    def _at(self) -> dict[str, str]:
        late = timedelta(seconds=self._random.lognormvariate(0, 1.2) * LATE_MEDIAN_S)
        return {"at": (datetime.now(UTC) - late).isoformat(timespec="milliseconds")}
