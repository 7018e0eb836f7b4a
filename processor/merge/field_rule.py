"""Finds merge rules by entry point, and applies one at its path in a delta."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Final, cast

from processor.entry_points import find_installed, installed_names, load_installed
from processor.errors import ConfigurationError, RecordRejected, Stop
from processor.merge import builtin_rules
from processor.merge.builtin_rules import Rule, WhenLate
from processor.record import Value
from processor.values.field_type import FieldType
from processor.values.pointer import names

GROUP: Final = "sowstream.merge_rules"
"""The entry-point group: the name is what `merge_rules` says, the object a `Rule`; `builtin_rules` says what one is."""


class FieldRule:
    """One merge rule at its path."""

    __slots__ = ("_begin", "_last", "_name", "_parents", "_path", "_rule", "_trusted", "pointer", "when_late")

    def __init__(self, pointer: str, name: str, field_type: FieldType) -> None:
        """Find the rule.

        Args:
            pointer: the field.
            name: the rule's name.
            field_type: the type of the field.

        Raises:
            ConfigurationError: there is no such rule, it cannot be imported, or it is not for such a field.
        """
        self.pointer: Final = pointer
        self._name, self._path = name, names(pointer)
        *self._parents, self._last = self._path
        self._rule = load_rule(name)
        takes: frozenset[str] | None = getattr(self._rule, "takes", None)
        if takes is not None and field_type.kinds is not None and takes.isdisjoint(field_type.kinds):
            raise ConfigurationError(
                f"merge rule {name} at {pointer}: the schema allows {one_of(field_type.kinds)} there; "
                f"{name} is for {one_of(takes)}"
            )
        self.when_late: Final[WhenLate] = getattr(self._rule, "when_late", "refused")
        self._begin = getattr(self._rule, "begin", None)
        self._trusted = getattr(self._rule, "__module__", None) == builtin_rules.__name__
        if not field_type.any_number:
            self._rule = getattr(self._rule, "in_kind", self._rule)

    def apply(self, record: Value, delta: Value) -> None:
        """Put the rule's result for the record's value and the delta's into the delta, in place.

        Raises:
            RecordRejected: `schema_mismatch` or the reason of the rule, with the path; `plugin_failed` if it raises
                anything else.
            Stop: the rule orders it, as where something that it asks does not answer.
        """
        for name in self._parents:
            delta = delta.get(name)
            if type(delta) is not dict:
                return
            record = record.get(name)
            if type(record) is not dict:
                record = {}
        last = self._last
        new = delta.get(last)
        if new is None:
            return
        old = record.get(last)
        try:
            if old is not None:
                value = self._rule(old if self._trusted else _own(old), new)
            elif self._begin is not None:
                value = self._begin(new)
            else:
                return
        except Stop:
            raise
        except RecordRejected as error:
            raise RecordRejected(error.reason, f"{self.pointer}, merge rule {self._name}: {error.detail}") from None
        except Exception as error:
            raise RecordRejected(
                "plugin_failed", f"merge rule {self._name} at {self.pointer}: {type(error).__name__}: {error}"
            ) from error
        if value is old:
            # The record has it: there is nothing to merge, and an object must not be merged into itself.
            del delta[last]
        else:
            delta[last] = value if self._trusted else _own(value)


def one_of(kinds: Iterable[str]) -> str:
    """Kinds of values in words: `array or text`."""
    return " or ".join(sorted(kinds))


def rule_names() -> list[str]:
    """The merge rules that are installed, sorted."""
    return installed_names(GROUP)


def load_rule(name: str) -> Rule:
    """Find a merge rule.

    Raises:
        ConfigurationError: there is no such rule, or it cannot be imported, or is no function.
    """
    noun = "merge rule"
    point = find_installed(GROUP, noun, name)
    rule = load_installed(point, noun)
    if not callable(rule):
        raise ConfigurationError(f"{noun} {name!r}: {point.value} is no function (old, new) -> value")
    return cast("Rule", rule)


def _own(value: Value) -> Value:
    """A copy of an object or array: what a plug-in holds and what a record holds must not be one thing."""
    return deepcopy(value) if type(value) in (dict, list) else value
