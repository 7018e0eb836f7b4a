"""A simulated order desk: orders are published in full, then services add fields of their own."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from processor.tools.demo.feeds.publisher import Publication

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

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
