"""The limits of one identity: requests, published records and compiled filters a second; its places and its names."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from processor.gateway.access.requests import BadRequest

if TYPE_CHECKING:
    from processor.config.gateway import GatewayLimits
    from processor.gateway.access.identity import Identity

LIVE_STEPS_MAX: Final = 20_000
"""Work of one identity's costly subscriptions on each update, in steps of about 100 ns: others wait for it."""
COSTLY_FROM_STEPS: Final = 100
"""A subscription of less work is not costly, and does not count."""
COSTLY_STEPS_MIN: Final = 500
"""A costly subscription counts as so much at least: its work may be far more on a record with long texts or arrays."""
BODIES_MAX: Final = 100
"""Bodies of one identity that are read at the same time: each may take half a minute, and has its place in memory."""
_SHARE: Final = 4
"""One identity may have one of so many places, unless the settings say another number."""
_SHARE_MIN: Final = 100
"""Places of one identity at a small gateway, if there are so many: a page takes one for each of its panes."""
_NAME_KEPT_S: Final = 24 * 3600.0
IDENTITIES_MAX: Final = 10_000
"""Identities that are kept in mind; the one that has asked for nothing for longest begins again."""


class Budget:
    """An amount that is there in each second. What is not used stays for `seconds`; debts are possible."""

    __slots__ = ("_clock_s", "_left", "_max", "_rate", "_seen_s", "_unit")

    def __init__(self, rate: int, unit: str, *, seconds: float = 1.0, clock_s: Callable[[], float]) -> None:
        self._rate = rate
        self._unit = unit
        self._max = self._left = rate * seconds
        self._clock_s = clock_s
        self._seen_s = clock_s()

    def spend(self, count: int) -> None:
        """Take a part; it may be more than is there, which the next ones wait for.

        Raises:
            BadRequest: `too_many`: nothing is left.
        """
        if self.wait_s() > 0:
            raise BadRequest("too_many", f"{self._rate} {self._unit} in a second are the limit of an identity")
        self.take(count)

    def take(self, count: int) -> None:
        """Take a part, if something is left or not."""
        self._left -= count

    def wait_s(self) -> float:
        """The time until something is left."""
        now_s = self._clock_s()
        self._left = min(self._max, self._left + (now_s - self._seen_s) * self._rate)
        self._seen_s = now_s
        return 0.0 if self._left > 0 else (1 - self._left) / self._rate


class Share:
    """A number of places, of which each that is taken is given back."""

    __slots__ = ("_max", "_taken", "_unit")

    def __init__(self, count_max: int | None, unit: str) -> None:
        self._max = count_max
        self._unit = unit
        self._taken = 0

    def take(self) -> None:
        """Take a place.

        Raises:
            BadRequest: `too_many`: none is left.
        """
        if self._max is not None and self._taken >= self._max:
            raise BadRequest("too_many", f"{self._max} {self._unit} at the same time are the limit of an identity")
        self._taken += 1

    def give_back(self) -> None:
        """Give a place back."""
        self._taken -= 1


class NameBudget:
    """The names under which an identity has numbered commands within a day.

    Workers remember the highest numbers of a limited number of names: one identity must not displace those of others.
    """

    __slots__ = ("_clock_s", "_max", "_used_s")

    def __init__(self, names_max: int, clock_s: Callable[[], float]) -> None:
        self._max = names_max
        self._clock_s = clock_s
        self._used_s: OrderedDict[str, float] = OrderedDict()  # When each was used last, in this order.

    def use(self, name: str) -> None:
        """Note the use of a name.

        Raises:
            BadRequest: `limit`: there are too many others.
        """
        now_s = self._clock_s()
        if name not in self._used_s:
            while self._used_s and next(iter(self._used_s.values())) <= now_s - _NAME_KEPT_S:
                self._used_s.popitem(last=False)
            if len(self._used_s) >= self._max:
                raise BadRequest(
                    "limit",
                    f"this identity has numbered commands under {self._max:,} names within a day, which is the limit "
                    "(publisher_names): use one of them, or leave out sequence",
                )
        self._used_s[name] = now_s
        self._used_s.move_to_end(name)


class Allowance:
    """The budgets and places of one identity, over all of its connections and requests."""

    __slots__ = ("bodies", "compiling", "live_steps", "names", "places", "publishes", "requests", "words")

    def __init__(
        self, limits: GatewayLimits, clock_s: Callable[[], float] = time.monotonic, *, is_anonymous: bool = False
    ) -> None:
        share = min(max(_SHARE_MIN, limits.connections // _SHARE), limits.connections)
        places = limits.connections_per_identity or share
        self.places: Final = Share(None if is_anonymous else places, "connections and requests")
        """Connections, and requests under way."""
        self.bodies: Final = Share(None if is_anonymous else BODIES_MAX, "bodies")
        """Bodies that are read."""
        self.requests: Final = Budget(limits.requests_per_s, "requests", clock_s=clock_s)
        """Requests, each of an array one by one."""
        self.publishes: Final = Budget(limits.publishes_per_s, "records to publish", clock_s=clock_s)
        """Records to publish, or to delete."""
        self.words: Final = Budget(limits.words_per_s, "words of filters and options", seconds=2.0, clock_s=clock_s)
        """Words of filters and options to compile."""
        self.names: Final = NameBudget(limits.publisher_names, clock_s)
        """Names under which it numbers commands."""
        self.compiling: Final = asyncio.Lock()
        """Held while a request is compiled on the thread: so identities take turns there."""
        self.live_steps = 0
        """The work of its costly subscriptions on each update, in steps of about 100 ns."""


def counted_steps(allowance: Allowance, steps: int, instead_of: int = 0) -> int:
    """The steps for which a subscription counts; 0: it is not costly.

    Args:
        allowance: of its identity.
        steps: its work on each update.
        instead_of: the steps of the subscription that it replaces.

    Raises:
        BadRequest: `limit`: the identity's subscriptions take too much.
    """
    if steps <= COSTLY_FROM_STEPS:
        return 0
    steps = max(steps, COSTLY_STEPS_MIN)
    if (total := allowance.live_steps - instead_of + steps) > LIVE_STEPS_MAX:
        raise BadRequest(
            "limit",
            f"the filters and orders of this identity would take {total:,} steps for each update, and may take "
            f"{LIVE_STEPS_MAX:,}: ask for fewer, or for simpler ones",
        )
    return steps


class Allowances:
    """The allowances of all identities. Event loop only."""

    def __init__(self, limits: GatewayLimits, *, is_anonymous: bool = False) -> None:
        """Begin without identities.

        Args:
            limits: the limits of each.
            is_anonymous: whether no token is needed: then all requests are of one identity, and places are not shared.
        """
        self._limits = limits
        self._is_anonymous = is_anonymous
        self._by_user: OrderedDict[str, Allowance] = OrderedDict()

    def of(self, identity: Identity) -> Allowance:
        """The allowance of an identity."""
        user = identity.user
        allowance = self._by_user.get(user)
        if allowance is None:
            allowance = self._by_user[user] = self.one()
            if len(self._by_user) > IDENTITIES_MAX:
                self._by_user.popitem(last=False)
        else:
            self._by_user.move_to_end(user)
        return allowance

    def one(self) -> Allowance:
        """A new allowance: of a WebSocket where no token is needed, so that nothing joins it with others."""
        return Allowance(self._limits, is_anonymous=self._is_anonymous)
