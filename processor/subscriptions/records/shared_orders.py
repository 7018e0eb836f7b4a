"""The orders of an engine's windows: shared by those that run, built in slices for the next one, declared, or kept.

An order of a million records takes many seconds to build. Settings declare the orders that must be there at once.
Others are kept for a while when their last window ends: a page that is loaded again asks for the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakValueDictionary

from processor.errors import ConfigurationError, SowstreamError
from processor.subscriptions.records.order_build import OrderBuild
from processor.subscriptions.request.record_order import SortOrder
from processor.subscriptions.request.top_n import Places

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from processor.filter import Filter
    from processor.record import Record
    from processor.subscriptions.request.subscribed_topic import Topic
    from processor.subscriptions.request.subscription_spec import SubscriptionSpec
    from processor.subscriptions.request.turn import Turn
    from processor.subscriptions.request.update import Update

ORDERS_MAX: Final = 4
"""Orders without a user that are kept up to date; another one replaces the least recently used one."""
WINDOW_MAX: Final = 5_000
"""Records of a window that begins within a turn."""
CONFLATED_MAX: Final = 5_000
"""Records whose groups by `conflation_key` are made within a turn."""
ROWS_MAX: Final = 2_000_000
"""The rows of all these together: about 250 bytes each."""
_ASKED_MAX: Final = 64
"""Orders of queries without updates that are remembered, by their names."""

_Name: TypeAlias = "tuple[str | None, str | None]"


class SharedOrders:
    """The places of records in each order that a window asks for."""

    def __init__(
        self,
        topic: Topic,
        records: Callable[[Filter | None], Iterable[Record]],
        wall_ms: Callable[[], int],
        declared: Iterable[str] = (),
        turn: Turn | None = None,
    ) -> None:
        """Begin without an order.

        Args:
            topic: the topic.
            records: returns records of now that include all matches of a filter.
            wall_ms: the wall clock, milliseconds since the epoch, by which records expire.
            declared: orders of all records that are always kept, an empty one by SOW key; `build_declared` does it.
            turn: the limit of slices, and so of windows; None: there is none.

        Raises:
            FilterError: a declared order cannot be meant.
        """
        self._topic = topic
        self._turn = turn
        self._snapshots: list[OrderBuild] = []  # Of records in an order, without a window: no two share them.
        self._records = records
        self._wall_ms = wall_ms
        orders = [SortOrder(text or None) for text in declared]
        self._declared: dict[_Name, SortOrder] = {(None, order.text): order for order in orders}
        self._running: WeakValueDictionary[_Name, Places] = WeakValueDictionary()
        self._builds: dict[_Name, OrderBuild] = {}  # The one asked for last comes last.
        self._asked: dict[_Name, bool] = {}  # Orders of queries without updates; the one asked for last comes last.

    def __bool__(self) -> bool:
        """Return whether an order must follow the updates."""
        return bool(self._builds) or bool(self._snapshots)

    def places_of(self, spec: SubscriptionSpec) -> Places:
        """The places of the records in focus in their order, shared with live windows of the same filter and order.

        Raises:
            SowstreamError: the order was being built, and a record cannot be parsed.
        """
        name = spec.order_name
        places = self._running.get(name)
        if places is None or not places.windows:
            build = self._builds.get(name)
            if build is None or build.has_failed:
                places = Places(self._turn)
            else:
                build.load()
                places = build.places
            if spec.live:  # Others are not kept up to date.
                self._running[name] = places
        places.reach(spec.window_depth)
        return places

    def prepare(self, spec: SubscriptionSpec) -> OrderBuild | None:
        """Begin to build the order of a window, or join who does; None: there is no window, or its order is there.

        A query without updates needs no more of an order than its window. When the same order is asked for again, all
        of it is wanted: more queries are likely to follow.
        """
        if spec.grouping is not None:
            return None
        if not spec.options.is_window:
            return self._prepare_snapshot(spec)
        if self._turn is not None and spec.window_places > WINDOW_MAX:
            raise ConfigurationError(
                f"a window has at most {WINDOW_MAX:,} records: give a smaller top_n, or leave out top_n and skip_n, so "
                "that all records come"
            )
        name = spec.order_name
        build = self._builds.pop(name, None)
        if build is not None:
            self._builds[name] = build
        places = self._running.get(name)
        if places is not None and places.windows and places.has_reached(spec.window_depth):
            return None
        if build is None or build.has_failed:
            assert spec.order is not None
            build = self._build(name, spec.filter, spec.order)
        if not spec.live:
            build.is_wanted |= self._asked.pop(name, False)
            self._asked[name] = True
            if len(self._asked) > _ASKED_MAX:
                del self._asked[next(iter(self._asked))]
        build.users += 1
        return build

    def _prepare_snapshot(self, spec: SubscriptionSpec) -> OrderBuild | None:
        """Begin to read and to sort all records of a snapshot that has an order, or groups by `conflation_key`."""
        is_conflated = bool(spec.options.conflation_key)
        if self._turn is None or not spec.reads_all or (spec.order is None and not is_conflated):
            return None
        order = SortOrder(None) if spec.order is None else spec.order
        build = OrderBuild(
            self._topic,
            spec.filter,
            order,
            self._records(spec.filter),
            self._wall_ms(),
            keeps_records=True,
            records_max=CONFLATED_MAX if is_conflated else None,
            turn=self._turn,
        )
        self._snapshots.append(build)
        build.users += 1
        return build

    def release(self, build: OrderBuild) -> None:
        """Let a build go; without a user or a window it is kept for a while if it is complete, and else dropped."""
        build.users -= 1
        if build.users:
            return
        if build in self._snapshots:
            self._snapshots.remove(build)
            build.abandon()
            return
        name = next((name for name, one in self._builds.items() if one is build), None)
        if name is not None and (build.has_failed or not (build.is_done or build.places.windows)):
            del self._builds[name]
            build.abandon()
        self._drop_kept()

    def build_declared(self) -> None:
        """Build the declared orders that are not there; an unreadable record leaves one out, and a window raises it."""
        for name, order in self._declared.items():
            if name not in self._builds:
                build = self._build(name, None, order)
                try:
                    build.finish()
                except SowstreamError:
                    del self._builds[name]

    def changed(self, update: Update) -> None:
        """Take an update, into the orders that no window keeps up to date."""
        for build in (*self._builds.values(), *self._snapshots):
            build.changed(update)

    def fail(self, places: Places, error: SowstreamError) -> None:
        """Note that an order missed an update of its windows: it is not used again when they have ended."""
        for build in self._builds.values():
            if build.places is places:
                build.fail(error)

    def _build(self, name: _Name, selection: Filter | None, order: SortOrder) -> OrderBuild:
        build = OrderBuild(self._topic, selection, order, self._records(selection), self._wall_ms(), turn=self._turn)
        self._builds[name] = build
        return build

    def _drop_kept(self) -> None:
        """Drop the least recently used orders without a user that are too many, or too large together."""
        unused = [name for name, build in self._builds.items() if not build.users and name not in self._declared]
        rows = sum(len(self._builds[name].places.sort_keys) for name in unused)
        while unused and (len(unused) > ORDERS_MAX or rows > ROWS_MAX):
            rows -= len(self._builds.pop(unused.pop(0)).places.sort_keys)
