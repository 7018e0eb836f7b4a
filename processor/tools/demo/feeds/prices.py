"""Simulated currency prices: each pair is published in full once, then only its changed fields."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from processor.tools.demo.feeds.publisher import Publication

if TYPE_CHECKING:
    from random import Random

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


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
