"""A select list: the parts of a record that a subscriber receives, such as `-/,+/id,+/a/b`.

The most specific rule wins, places without a rule are included, and key fields always are. A list is compiled once, to
a tree of places that differ from their parents, and the tree to a function: each update and each record of a snapshot
comes through here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial, reduce
from typing import Any, Final, TypeAlias

from processor.errors import FilterError
from processor.filter.limits import CHARACTERS_MAX, DEPTH_MAX
from processor.filter.parse import syntax_error
from processor.filter.value import PATH, read_path
from processor.merge.key import KeyFields
from processor.record import Value
from processor.subscriptions.request.subscribe_options import Item, split
from processor.values.kinds import MISSING
from processor.values.pointer import names

Projection: TypeAlias = Callable[[Value], Value]
"""The selected part of a value; MISSING if nothing is selected."""

_RULE: Final = re.compile(rf"([+-])\s*({PATH}|/)", re.DOTALL)
_SIGN: Final = re.compile(r"[+-]\s*")


class Select:
    """A select list that was compiled."""

    __slots__ = ("canonical_text", "is_nested", "project", "root", "text")

    text: str
    """The compiled form."""
    canonical_text: str
    """Equal for lists that include the same places, and for no others."""
    root: Node
    """The same as a tree."""
    is_nested: bool
    """True if it has rules for places in fields, and not for fields alone."""
    project: Projection
    """The selected part of a record: a new object, which shares its values with the record.

    An object that is excluded is there if a member of it is selected, and then has no others; of one that is included
    there is always at least `{}`. Arrays are gone through: each object in them is projected, and what comes to nothing
    in an excluded array is left out of it. A record that is no object passes whole.
    """

    def __init__(self, text: str, key: KeyFields) -> None:
        """Compile a list.

        Args:
            text: rules, `+` or `-` and a path each, separated by commas; a path is one of filters, without `[n]`.
            key: the topic's key fields.

        Raises:
            FilterError: it cannot be meant; the message shows the place.
        """
        self.text = text
        root = _parse(text)
        for pointer in key.pointers:
            node = root.below(names(pointer))
            node.included, node.members = True, {}
        root.settle(above=True)
        self.settle(root)

    @classmethod
    def union(cls, selects: Sequence[Select]) -> Select:
        """The list that includes each place that at least one of these lists includes."""
        union = copy(selects[0])
        union.text = " or ".join(select.text for select in selects)
        union.settle(reduce(partial(_combined, included=any), [select.root for select in selects]))
        return union

    @classmethod
    def intersection(cls, one: Select, other: Select) -> Select:
        """The list that includes each place that both lists include."""
        both = copy(one)
        both.text = f"({one.text}) and ({other.text})"
        both.settle(_combined(one.root, other.root, included=all))
        return both

    @property
    def rules(self) -> list[Any]:
        """The rules as JSON: whether a place is included, and the same of the places in it that differ, by name."""
        return _rules(self.root)

    def __repr__(self) -> str:
        return f"Select({self.text!r})"

    def settle(self, root: Node) -> None:
        """Take a tree whose places are decided."""
        self.root = root
        self.canonical_text = json.dumps(_rules(root), sort_keys=True)
        self.is_nested = any(member.members for member in root.members.values())
        self.project = _of_record(root, is_nested=self.is_nested)


class Node:
    """A place in records with a rule for it, or for a place in it."""

    __slots__ = ("included", "members")

    def __init__(self) -> None:
        self.included: bool | None = None
        """True if the rule for this place includes it; None: it has no rule."""
        self.members: dict[str, Node] = {}
        """Places in it."""

    def below(self, path: tuple[str, ...]) -> Node:
        """The place at a path from here, made if need be."""
        node = self
        for name in path:
            node = node.members.setdefault(name, Node())
        return node

    def member(self, name: str) -> Node:
        """A place in it, settled as it is; one without a rule is as its parent."""
        if (member := self.members.get(name)) is not None:
            return member
        plain = Node()
        plain.included = self.included
        return plain

    def settle(self, *, above: bool) -> None:
        """Decide each place, and drop those that are decided as their parents are."""
        if self.included is None:
            self.included = above
        for member in self.members.values():
            member.settle(above=self.included)
        self.members = {
            name: member
            for name, member in self.members.items()
            if member.members or member.included is not self.included
        }


def _rules(node: Node) -> list[Any]:
    return [node.included, {name: _rules(member) for name, member in node.members.items()}]


def _combined(one: Node, other: Node, included: Callable[[Iterable[object]], bool]) -> Node:
    """The union (`any`) or the intersection (`all`) of two settled trees."""
    combined = Node()
    combined.included = included((one.included, other.included))
    for name in dict.fromkeys((*one.members, *other.members)):
        member = _combined(one.member(name), other.member(name), included)
        if member.members or member.included is not combined.included:
            combined.members[name] = member
    return combined


def _parse(text: str) -> Node:
    """The rules as a tree."""
    if len(text) > CHARACTERS_MAX:
        said = f"it has {len(text)} characters, a select list at most {CHARACTERS_MAX}; make it shorter"
        raise _syntax_error(text, CHARACTERS_MAX, said)
    root = Node()
    for item in split(text):
        included, path = _rule(text, item)
        node = root.below(path)
        if node.included is not None:
            raise _syntax_error(text, item.at, f"{item.text[1:].strip()} is given twice")
        node.included = included
    return root


def _rule(text: str, item: Item) -> tuple[bool, tuple[str, ...]]:
    """Return whether one rule includes its path, and the path."""
    match = _RULE.match(item.text)
    if match is None:
        sign = _SIGN.match(item.text)
        if sign is None:
            found = "" if item.text else f"; {'the list ends' if item.at == len(text) else 'found a comma'}"
            raise _syntax_error(text, item.at, f"expected + or - and a path, such as +/id or -/{found}")
        raise _syntax_error(text, item.at + sign.end(), "expected a path, such as /id, /a/b or /'a b'")
    if match.end() < len(item.text):
        raise _syntax_error(
            text, item.at + match.end(), "expected a comma or the end; a name with this in it is quoted"
        )
    path: list[str] = []
    for part in () if match[2] == "/" else read_path(match[2]):
        if isinstance(part, int):
            place = item.at + match.start(2)
            raise _syntax_error(text, place, f"[{part}]: an element of an array cannot be selected, only all of them")
        path.append(part)
    if len(path) > DEPTH_MAX:
        raise _syntax_error(text, item.at, f"the path has {len(path)} steps, a path at most {DEPTH_MAX}")
    return match[1] == "+", tuple(path)


def _syntax_error(text: str, at: int, said: str) -> FilterError:
    return syntax_error(text, at, said, "select")


def _of_record(root: Node, *, is_nested: bool) -> Projection:
    """The function of the full record; the usual lists, of fields at the top, have functions of their own."""
    if not is_nested:
        return _without(tuple(root.members)) if root.included else _only(tuple(root.members))
    inner = _of_included(root) if root.included else _of_excluded(root)

    def project(record: Value) -> Value:
        if type(record) is not dict:
            return record
        selected = inner(record)
        return {} if selected is MISSING else selected

    return project


def _only(selected: tuple[str, ...]) -> Projection:
    """Some fields at the top."""

    def project(record: Value) -> Value:
        return {name: record[name] for name in selected if name in record} if type(record) is dict else record

    return project


def _without(excluded: tuple[str, ...]) -> Projection:
    """All but some fields at the top."""

    def project(record: Value) -> Value:
        if type(record) is not dict:
            return record
        rest = record.copy()
        for name in excluded:
            if name in rest:
                del rest[name]
        return rest

    return project


def _of(node: Node) -> Projection | None:
    """The function of a place: None where it is all or nothing, by the rule of the node."""
    if not node.members:
        return None
    return _of_included(node) if node.included else _of_excluded(node)


def _of_included(node: Node) -> Projection:
    """An included place: all but its excluded members."""
    members = tuple((name, _of(member)) for name, member in node.members.items())

    def project(value: Value) -> Value:
        kind = type(value)
        if kind is list:
            return [project(element) for element in value]
        if kind is not dict:
            return value
        rest = value.copy()
        for name, inner in members:
            if name in rest:
                member = MISSING if inner is None else inner(rest[name])
                if member is MISSING:
                    del rest[name]
                else:
                    rest[name] = member
        return rest

    return project


def _of_excluded(node: Node) -> Projection:
    """An excluded place: nothing but its included members."""
    members = tuple((name, _of(member)) for name, member in node.members.items())

    def project(value: Value) -> Value:
        kind = type(value)
        if kind is dict:
            selected = {}
            for name, inner in members:
                if name in value:
                    member = value[name] if inner is None else inner(value[name])
                    if member is not MISSING:
                        selected[name] = member
            return selected or MISSING
        if kind is list:
            elements = [left for element in value if (left := project(element)) is not MISSING]
            return elements or MISSING
        return MISSING

    return project
