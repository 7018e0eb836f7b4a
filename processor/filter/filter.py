"""Compiled filters and expressions, as the rest of the code uses them, and the filters of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.errors import ConfigurationError
from processor.filter.compile import Compiler
from processor.filter.evaluation import NO_METADATA, Evaluate, OverBudget, RecordMetadata, evaluate, within_budget
from processor.filter.limits import COUNTED_FROM_STEPS
from processor.filter.parse import parse
from processor.filter.syntax_tree import Call, Node, Path, children
from processor.values.instant import Time
from processor.values.key_text import text_of_key
from processor.wire.subscriber_headers import correlation_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from processor.record import Headers, Record, Value


_NO_MEMBERS: Final[dict[str, Value]] = {}
"""The object that paths see in place of a record without fields, such as the bytes of a binary one."""


class _Compiled:
    """A compiled text."""

    __slots__ = ("_compiled", "moves_by_itself", "steps", "text", "tree", "uses_metadata")

    text: str
    """Its text."""
    tree: Node
    """Its syntax tree, from which an index or another engine's condition can be made."""
    steps: int
    """Its work on an ordinary record, in steps of about 100 ns."""
    moves_by_itself: bool
    """True if it uses a function whose value moves although no record changes, such as UNIX_TIMESTAMP."""
    uses_metadata: bool
    """True if it asks for `RecordMetadata`; if not, none need be made."""

    def __init__(self, text: str) -> None:
        """Compile it.

        Raises:
            FilterError: it cannot be compiled; the message shows the place.
        """
        self.text, self.tree = text, parse(text)
        compiler = Compiler(text)
        self._compiled = self._compile(compiler)
        # A filter of much work is counted from the beginning.
        self.steps = compiler.steps(self.tree)
        if self.steps > COUNTED_FROM_STEPS:
            self._compiled = within_budget(self._compiled, self.steps)
        self.moves_by_itself, self.uses_metadata = compiler.moves_by_itself, compiler.uses_metadata

    @property
    def functions(self) -> frozenset[str]:
        """The names of the functions that it calls, in capitals."""
        return frozenset(_functions(self.tree))

    @property
    def paths(self) -> list[tuple[str | int, ...]]:
        """The places in the record that it asks for, from the record down, in the order of its text."""
        return list(dict.fromkeys(_paths(self.tree)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def _compile(self, compiler: Compiler) -> Evaluate:
        """The tree as a function."""
        raise NotImplementedError


class Expression(_Compiled):
    """A compiled expression: computes a value of each record."""

    __slots__ = ()

    def value(self, record: Value, metadata: RecordMetadata = NO_METADATA) -> Value:
        """The value for a record: of a path the value there, else None, a bool, a number, a text, or a record's time.

        NULL if the evaluation is over its budget.

        Raises:
            RecordRejected: `plugin_failed`: a third party's function raised.
        """
        members = record if type(record) is dict else _NO_MEMBERS
        try:
            value = self._compiled(members, metadata)
        except OverBudget:
            value = evaluate(self._compiled, members, metadata)
        return value.value if type(value) is Time else value

    def _compile(self, compiler: Compiler) -> Evaluate:
        return compiler.value(self.tree)


class Filter(_Compiled):
    """A compiled filter: decides whether a record matches."""

    __slots__ = ()

    def matches(self, record: Value, metadata: RecordMetadata = NO_METADATA) -> bool:
        """Return whether a record matches: the filter is true of it, neither false nor NULL, nor over its budget.

        Args:
            record: the parsed record; it is only looked at.
            metadata: its metadata.

        Raises:
            RecordRejected: `plugin_failed`: a third party's function raised.
        """
        members = record if type(record) is dict else _NO_MEMBERS
        try:
            return self._compiled(members, metadata) is True
        except OverBudget:
            return evaluate(self._compiled, members, metadata) is True

    def _compile(self, compiler: Compiler) -> Evaluate:
        return compiler.truth(self.tree)


def _functions(node: Node) -> Iterator[str]:
    if isinstance(node, Call):
        yield node.name
    for child in children(node):
        yield from _functions(child)


def _paths(node: Node) -> Iterator[tuple[str | int, ...]]:
    if isinstance(node, Path):
        yield node.parts
    for child in children(node):
        yield from _paths(child)


def compile_filter(text: str) -> Filter:
    """Compile a filter.

    Raises:
        FilterError: it cannot be compiled; the message shows the place.
    """
    return Filter(text)


def compile_expression(text: str) -> Expression:
    """Compile an expression.

    Raises:
        FilterError: it cannot be compiled; the message shows the place.
    """
    return Expression(text)


def compile_selection(setting: str, text: str | None, *, changes_with: str) -> Filter | None:
    """Compile the filter of a setting; None: it has none.

    Args:
        setting: its full name, such as `conflated.slow.filter`.
        text: the filter.
        changes_with: why its answer must not change with the clock, such as "a copy changes with its topic alone".

    Raises:
        ConfigurationError: it cannot be read, or its answer changes with the clock.
    """
    if text is None:
        return None
    try:
        selected = compile_filter(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{setting}: {error}") from None
    if selected.moves_by_itself:
        raise ConfigurationError(
            f"{setting}: {text}: its answer changes with the clock, and {changes_with}; filter by a field of the record"
        )
    return selected


def require_fields(setting: str, underlying: str, *, can_delta: bool) -> None:
    """Refuse a filter on records that have no fields.

    Raises:
        ConfigurationError: the message type has no fields.
    """
    if not can_delta:
        raise ConfigurationError(f"{setting}: the records of {underlying} have no fields to look at; remove it")


def selects(selected: Filter, topic: str) -> Callable[[Value, Record], bool]:
    """Return the filter as a function of a record's value and the record, which is a SOW record of `topic`."""
    matches = selected.matches
    if not selected.uses_metadata:
        return lambda value, _record: bool(matches(value))
    return lambda value, record: bool(matches(value, metadata_of(record, topic)))


def metadata_of(record: Record, topic: str) -> RecordMetadata:
    """Return the metadata of a SOW record that filters and expressions may use besides its fields."""
    return metadata_of_parts(record.key, record.value, record.headers, topic, record.timestamp_ms)


def metadata_of_parts(
    key: bytes | None, data: bytes | None, headers: Headers | None, topic: str, changed_ms: int | None
) -> RecordMetadata:
    """Return the metadata of a SOW record in parts; `changed_ms` is its time of change, since the epoch."""
    return RecordMetadata(
        message_bytes=len(data or b""),
        sow_key=text_of_key(key),
        topic=topic,
        correlation_id=correlation_id(headers) or "",
        last_updated_ms=changed_ms,
    )
