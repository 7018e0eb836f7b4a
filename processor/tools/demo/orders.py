"""An order desk: orders are published whole, and then others add what they know, each its own field."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from processor.tools.demo.feed import Publication

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

OPEN: Final = 150
"""Orders on their way at any time."""
KEPT: Final = 500
"""Orders that are done and stay; older ones are deleted, so the state of the world stays small however long it runs."""
_SPOILT_ONE_IN: Final = 150
_AMENDED_ONE_IN: Final = 20

_CUSTOMERS: Final = ("Ada Marsh", "Bo Keller", "Chen Wei", "Dalia Bey", "Emeka Obi", "Freya Lee")
_ITEMS: Final = ("lamp, brass", "desk, oak", "chair, grey", "bookcase", "kettle 1.7 l")
_WAREHOUSES: Final = ("Antwerp", "Gdansk", "Lyon", "Porto")


class OrderDesk:
    """Everything that is published about orders, one publication at a time, many orders at once."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._opened = 0
        self._open: list[Iterator[Publication]] = []
        self._done: deque[int] = deque()

    def next(self) -> Publication:
        """The next publication: a step of one of the open orders, a new order, or an old one deleted."""
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
        """One order: the desk takes it, inventory and credit look at it in either order, fulfilment decides."""
        random = self._random
        order: dict[str, Any] = {
            "id": number,
            "customer": random.choice(_CUSTOMERS),
            "item": random.choice(_ITEMS),
            "qty": random.randint(1, 40),
            "state": "new",
        }
        yield _whole(order)
        yield from self._looked_at(order)
        if random.randrange(_AMENDED_ONE_IN) == 0:
            # A full publish replaces: what inventory and credit said about the old quantity is gone.
            order["qty"] += random.randint(1, 5)
            yield _whole(order)
            yield from self._looked_at(order)
        if random.randrange(_SPOILT_ONE_IN) == 0:
            yield Publication(_key(number), b'{"id": %d, "state": "fil' % number)
        if random.random() < 0.2:
            yield _delta(number, state="held")
            # The second delivery came: one field deep inside changes.
            yield _delta(number, inventory={"reserved": order["qty"]})
        yield _delta(number, state="cancelled" if random.random() < 0.1 else "filled")
        self._done.append(number)

    def _looked_at(self, order: dict[str, Any]) -> Iterator[Publication]:
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
        """By command or by tombstone: both do the same."""
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
