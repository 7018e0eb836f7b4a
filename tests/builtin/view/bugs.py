"""Faults that the histories must find: each changes one behaviour of a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from processor.builtin.view import rows as rows_stage
from processor.builtin.view.join import ViewJoin
from processor.builtin.view.split import ViewSplit
from processor.builtin.view.stage_output import RIGHT
from processor.filter.aggregate import AggregateDefinition
from processor.filter.aggregate.extremes import Extreme
from processor.filter.aggregate.moments import Moments
from processor.wire.view_parts import member_key

if TYPE_CHECKING:
    import pytest

Inject = Callable[["pytest.MonkeyPatch"], None]


def difference_instead_of_state(patch: pytest.MonkeyPatch) -> None:
    """Each part is added to its group, as a difference would be; the part that it replaces is not taken off."""
    patch.setattr("processor.filter.aggregate.group.Group.remove", lambda self, contribution: None)
    patch.setattr("processor.filter.aggregate.group.Group.replace", lambda self, old, new: self.add(new))


def old_group_not_left(patch: pytest.MonkeyPatch) -> None:
    """A record that changes its group stays in the old one."""
    real = ViewSplit._leave

    def leave(self: ViewSplit, parts: Any, old: Any, key: bytes, route: Any, headers: Any) -> None:
        if route is None:
            real(self, parts, old, key, route, headers)

    patch.setattr(ViewSplit, "_leave", leave)


def tombstone_not_sent(patch: pytest.MonkeyPatch) -> None:
    """A record that is deleted, or stops matching, stays in its group."""
    real = ViewSplit._leave

    def leave(self: ViewSplit, parts: Any, old: Any, key: bytes, route: Any, headers: Any) -> None:
        if route is not None:
            real(self, parts, old, key, route, headers)

    patch.setattr(ViewSplit, "_leave", leave)


def float_sum(patch: pytest.MonkeyPatch) -> None:
    """Sums are added up as doubles, in the order of arrival."""

    def total(self: Moments) -> float | None:
        return getattr(self, "floating", None) if self.count else None

    class FloatMoments(Moments):
        floating = 0.0

        def add(self, number: tuple[int, int], times: int = 1) -> None:
            super().add(number, times)
            self.floating += times * number[0] / 10 ** number[1]

    patch.setattr(Moments, "sum", total)
    patch.setattr("processor.filter.aggregate.group.Moments", FloatMoments)


def no_row_is_deleted(patch: pytest.MonkeyPatch) -> None:
    """A group without members keeps its row."""
    real = AggregateDefinition.row
    patch.setattr(AggregateDefinition, "row", lambda self, group: real(self, group) or {"customer": None})


def removed_extreme_stays(patch: pytest.MonkeyPatch) -> None:
    """A value that leaves its group stays among those nearest to the extreme."""
    patch.setattr(Extreme, "remove", lambda self, key: None)


def forgotten_values_are_none(patch: pytest.MonkeyPatch) -> None:
    """An extreme of which all nearest values have left, and others were forgotten, is NULL."""
    patch.setattr(Extreme, "best", lambda self: self._kept[-1 if self._is_greatest else 0] if self._kept else None)


def stale_answer_applied(patch: pytest.MonkeyPatch) -> None:
    """The answers about a record have one key for all its join keys, so that the last to arrive counts."""

    def answer(self: ViewJoin, group: bytes, key: bytes, partner: bytes | None) -> None:
        partition = self._context.partition_for(key, "answers")
        self._answers.setdefault(partition, []).append((member_key(key, RIGHT + group[:2]), partner, []))

    patch.setattr(ViewJoin, "_answer", answer)
    patch.setattr(rows_stage, "answer_member", lambda place, _key: RIGHT + b"%d/" % place)


OF_GROUPS: dict[str, Inject] = {
    bug.__name__: bug
    for bug in (difference_instead_of_state, old_group_not_left, tombstone_not_sent, float_sum, no_row_is_deleted)
}
"""Faults in views with groups."""

OF_EXTREMES: dict[str, Inject] = {bug.__name__: bug for bug in (removed_extreme_stays, forgotten_values_are_none)}
"""Faults in combined extremes."""

OF_JOINS: dict[str, Inject] = {"stale_answer_applied": stale_answer_applied}
"""Faults in joins."""
