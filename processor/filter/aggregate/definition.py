"""The compiled text of a definition: which records count, their groups and contributions, and the rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from difflib import get_close_matches
from itertools import repeat
from typing import Any, Final, NamedTuple

from processor.errors import ConfigurationError, FilterError
from processor.filter.aggregate.columns import Column, column_of, column_of_path, plain
from processor.filter.aggregate.group import COMBINED, FUNCTIONS, Aggregate, CombinedGroup, Contribution, Group, Place
from processor.filter.compile import Compiler
from processor.filter.evaluation import NO_METADATA, Evaluate, RecordMetadata
from processor.filter.filter import Filter, compile_filter
from processor.filter.functions import function_names
from processor.filter.limits import DEPTH_MAX
from processor.filter.parse import parse, syntax_error
from processor.filter.syntax_tree import JOINED_MARK, Call, Node, Path, Scalar, children
from processor.record import Value
from processor.values.pointer import names, nested

_RESULT: Final = "\1result"
"""The member of the record over which the rest of a field's expression is computed: aggregates and grouping values."""

# Contribution(...) goes through a function written in Python; this makes the same tuple in half the time.
_new = tuple.__new__

_ONE_ARGUMENT: Final = sorted(FUNCTIONS - {"COUNT(*)"})
_OTHER_SPELLINGS: Final = {"MEAN": "AVG", "STDDEV": "STDDEV_SAMP", "DISTINCT": "COUNT_DISTINCT"}


class _Field(NamedTuple):
    """One field of the rows."""

    pointer: str
    """Its JSON Pointer."""
    path: tuple[str, ...]
    """The names that the pointer leads through."""
    value: Evaluate
    """Its value: of the record, or of the group's results."""
    result: int | None = None
    """The place of the result that it is; None: it computes with results, or is a record's."""


class FieldsDefinition:
    """The fields of a projection or a join: values computed of one record, or of a record and its partners."""

    def __init__(self, fields: Mapping[str, str], joined: Collection[str] = ()) -> None:
        """Compile the fields; see `compile_fields`."""
        self._fields = []
        self._trees: list[Node] = []
        self._joined: dict[str, set[str]] = {topic: set() for topic in joined}
        own: set[str] = set()
        for pointer, text in fields.items():
            tree = _parsed(pointer, text)
            if (call := _aggregate_in(tree)) is not None:
                problem = f"{call.name.removesuffix('(*)')} is computed over a group: add `group_by`, or take it away"
                raise _error(pointer, text, call.at, problem)
            self._fields.append(_Field(pointer, _names(pointer), _compiled(pointer, text, tree, joined)))
            self._trees.append(tree)
            for path in _paths(tree):
                first_name = str(path[0])
                if first_name.startswith(JOINED_MARK):
                    self._joined[first_name.removeprefix(JOINED_MARK)].add(str(path[1]))
                else:
                    own.add(first_name)
        self.members: tuple[str, ...] = tuple(sorted(own))
        """The members of a record that the fields use."""

    @property
    def simple_members(self) -> list[tuple[str, str | None, str]] | None:
        """Of each field its name, the joined topic or None, and the member that it is; None: one of them is more."""
        simple = []
        for field, tree in zip(self._fields, self._trees, strict=True):
            parts = tree.parts if isinstance(tree, Path) else ()
            topic = None
            if parts and str(parts[0]).startswith(JOINED_MARK):
                topic, parts = str(parts[0]).removeprefix(JOINED_MARK), parts[1:]
            if len(parts) != 1 or len(field.path) != 1:
                return None
            simple.append((field.path[0], topic, str(parts[0])))
        return simple

    def joined_members(self, topic: str) -> tuple[str, ...]:
        """Return the members of a joined topic's records that the fields use."""
        return tuple(sorted(self._joined[topic]))

    def row(self, record: Value, metadata: RecordMetadata = NO_METADATA) -> dict[str, Value]:
        """Return the row of a record; a field without a value is left out.

        Raises:
            RecordRejected: `plugin_failed`: a third party's function raised.
        """
        row: dict[str, Value] = {}
        for field in self._fields:
            value = plain(field.value(record, metadata))
            if value is not None:
                _set(row, field.path, value)
        return row


class AggregateDefinition:
    """The aggregates of the records of each group."""

    def __init__(self, group_by: Mapping[str, str], fields: Mapping[str, str], having: str | None) -> None:
        """Compile the definition; see `compile_aggregates`."""
        self.key: tuple[str, ...] = tuple(group_by.values())
        """The JSON Pointers of the rows' key fields, in order."""
        self._grouping = [column_of_path(_names(pointer)) for pointer in group_by]
        self._grouped: dict[tuple[str | int, ...], int] = {
            _names(pointer): place for place, pointer in enumerate(group_by)
        }
        self._aggregates: list[Aggregate] = []
        self._arguments: list[tuple[Any, ...]] = []  # The shapes of their trees.
        self._columns: list[Column] = []
        self._argument_paths: list[tuple[str | int, ...]] = []  # Of arguments that are paths; others have an empty one.
        self.uses_metadata = False
        """True if a contribution needs the metadata of its record; if not, none need be made."""
        self._key_paths = [_names(pointer) for pointer in group_by.values()]
        self._fields = [self._field(pointer, text) for pointer, text in fields.items()]
        if pair := nested([*self._key_paths, *(field.path for field in self._fields)]):
            raise ConfigurationError(f"{pair[0]} lies inside {pair[1]}; remove one of the two")
        self._having = None if having is None else _having(having)
        self.aggregates = tuple(self._aggregates)
        """The calls of aggregate functions; equal ones are one."""

    def new_group(self, kept_max: int | None = None) -> Group:
        """Return a group without members; `kept_max` is that of its extremes, None: as usual."""
        return Group(self.aggregates, kept_max)

    def new_combined_group(self) -> CombinedGroup:
        """Return a group without partial aggregates."""
        return CombinedGroup(self.aggregates)

    @property
    def not_combined(self) -> list[str]:
        """The aggregate functions whose values over parts of a group do not combine, in order."""
        return sorted({each.function for each in self.aggregates} - COMBINED)

    @property
    def simple_members(self) -> list[str] | None:
        """The only grouping member, and the member that each argument is, where the definition has no deviations.

        None: it groups by several fields or by none, or a field or an argument is no member of the record.
        """
        [*paths] = *self._grouped, *self._argument_paths
        has_squares = any(each.function in {"STDDEV_POP", "STDDEV_SAMP"} for each in self.aggregates)
        if has_squares or len(self._grouped) != 1 or any(len(path) != 1 for path in paths):
            return None
        return [str(path[0]) for path in paths]

    @property
    def simple_fields(self) -> list[tuple[str, Aggregate | None]] | None:
        """The name of each field of a row, and the aggregate that it is: None for the grouping value.

        None: `having` refuses rows, there is not one grouping field, or a field is computed or inside an object.
        """
        if self._having is not None or len(self._key_paths) != 1:
            return None
        paths = [*self._key_paths, *(field.path for field in self._fields)]
        results = [-1, *(field.result for field in self._fields)]
        if None in results or any(len(path) != 1 for path in paths):
            return None
        aggregates = [*self._aggregates, None]  # As the results of a row, with the grouping value at the end.
        return [(path[0], aggregates[result or 0]) for path, result in zip(paths, results, strict=True)]

    def contribution(self, record: Value, place: Place, metadata: RecordMetadata = NO_METADATA) -> Contribution:
        """Return the part of a record that its group needs.

        Args:
            record: the record, parsed.
            place: its place among the members.
            metadata: its metadata.

        Raises:
            RecordRejected: `plugin_failed`: a third party's function raised.
        """
        [contribution] = self.contributions([record], [place], [metadata])
        return contribution

    def contributions(
        self,
        records: Sequence[Value],
        places: Sequence[Place],
        metadata: Sequence[RecordMetadata] | None = None,
    ) -> list[Contribution]:
        """Return the contributions of many records; arguments and errors as `contribution`.

        Args:
            records: the records, parsed.
            places: the place of each.
            metadata: the metadata of each; None: it is not used.
        """
        groups = _rows([column(records, metadata) for column in self._grouping], len(records))
        arguments = _rows([column(records, metadata) for column in self._columns], len(records))
        return list(map(_new, repeat(Contribution), zip(places, groups, arguments, strict=True)))

    def row(self, group: Group) -> dict[str, Value] | None:
        """Return the row of a group; None: it has no members, or `having` refuses it.

        Raises:
            GroupIncomplete: build the group again.
        """
        if not group.members:
            return None
        group_values = group.group_values()
        results = [*group.values(), *group_values]
        record = {_RESULT: results}
        row: dict[str, Value] = {}
        for path, value in zip(self._key_paths, group_values, strict=True):
            _set(row, path, value)
        for _, path, evaluate, result in self._fields:
            value = plain(evaluate(record, NO_METADATA) if result is None else results[result])
            if len(path) == 1:
                row[path[0]] = value
            else:
                _set(row, path, value)
        return row if self._having is None or self._having.matches(row) else None

    def _field(self, pointer: str, text: str) -> _Field:
        path = _names(pointer)
        if path in self._key_paths:
            raise ConfigurationError(f"fields: {pointer} is a field of `group_by` already; remove one of the two")
        tree = self._over_results(pointer, text, _parsed(pointer, text))
        result = tree.parts[1] if isinstance(tree, Path) else None
        return _Field(pointer, path, _compiled(pointer, text, tree), result if isinstance(result, int) else None)

    def _column(self, pointer: str, text: str, tree: Node) -> Column:
        compiler = Compiler(text)
        evaluate = _compiled(pointer, text, tree, compiler=compiler)
        self.uses_metadata |= compiler.uses_metadata
        return column_of_path(tree.parts) if isinstance(tree, Path) else column_of(evaluate)

    def _over_results(self, pointer: str, text: str, node: Node) -> Node:
        """Return the tree with each aggregate and grouping field in it replaced by the path of its result.

        Raises:
            FilterError: a field is neither grouped nor aggregated, or an aggregate is inside another one.
        """
        if isinstance(node, Call) and node.name in FUNCTIONS:
            return Path((_RESULT, self._place_of(pointer, text, node)), node.at)
        if isinstance(node, Path):
            place = self._grouped.get(node.parts)
            if place is None:
                shown = text[node.at :].split(maxsplit=1)[0].rstrip("),")
                problem = (
                    f"{shown} is neither grouped nor aggregated: add it to `group_by`, or write LAST({shown}), "
                    f"MAX({shown}) or another aggregate"
                )
                raise _error(pointer, text, node.at, problem)
            # Behind the aggregates, of which the number is known at the end: grouping values are counted from the end.
            return Path((_RESULT, place - len(self._grouped)), node.at)
        if isinstance(node, Call) and (near := _near_aggregate(node)):
            raise _error(pointer, text, node.at, f"there is no function {node.name}{near}")
        changed: dict[str, Any] = {}
        for field in dataclass_fields(node):
            value = getattr(node, field.name)
            if isinstance(value, tuple) and value and not isinstance(value[0], str):
                changed[field.name] = tuple(self._over_results(pointer, text, each) for each in value)
            elif any(value is child for child in children(node)):
                changed[field.name] = self._over_results(pointer, text, value)
        return replace(node, **changed)

    def _place_of(self, pointer: str, text: str, call: Call) -> int:
        """Return the place of an aggregate's value among the results; equal calls have one place."""
        if call.name == "COUNT(*)":
            argument = -1
        else:
            if len(call.arguments) != 1:
                hint = "; to count records write COUNT(*)" if call.name == "COUNT" else ""
                count = len(call.arguments) or "none"
                raise _error(pointer, text, call.at, f"{call.name} takes 1 argument; here it has {count}{hint}")
            (tree,) = call.arguments
            if (inner := _aggregate_in(tree)) is not None:
                raise _error(pointer, text, inner.at, "an aggregate inside another one; make a view over a view of it")
            shape = _shape(tree)
            if shape not in self._arguments:
                self._arguments.append(shape)
                self._columns.append(self._column(pointer, text, tree))
                self._argument_paths.append(tree.parts if isinstance(tree, Path) else ())
            argument = self._arguments.index(shape)
        aggregate = Aggregate(call.name, argument)  # type: ignore[arg-type]
        if aggregate not in self._aggregates:
            self._aggregates.append(aggregate)
        return self._aggregates.index(aggregate)


def compile_fields(fields: Mapping[str, str], joined: Collection[str] = ()) -> FieldsDefinition:
    """Compile the fields of a projection or a join.

    Args:
        fields: the expression of each field, by JSON Pointer.
        joined: the joined topics, whose fields are `[topic]./path`.

    Raises:
        FilterError: an expression cannot be compiled; the message shows the place.
        ConfigurationError: a pointer leads nowhere.
    """
    return FieldsDefinition(fields, joined)


def compile_aggregates(
    group_by: Mapping[str, str], fields: Mapping[str, str], having: str | None = None
) -> AggregateDefinition:
    """Compile the aggregates of groups.

    Args:
        group_by: the fields of the records that make a group, as JSON Pointers, and their names in the rows.
        fields: the expression of each other field of the rows, by JSON Pointer.
        having: a filter over the rows; None: all of them.

    Raises:
        FilterError: an expression cannot be compiled; the message shows the place.
        ConfigurationError: a pointer leads nowhere, or a field is there twice, or lies inside another one.
    """
    return AggregateDefinition(group_by, fields, having)


def _rows(columns: Sequence[Sequence[Scalar]], count: int) -> Iterable[tuple[Scalar, ...]]:
    """Return the columns' values of each of so many records."""
    return zip(*columns, strict=True) if columns else repeat((), count)


def _set(row: dict[str, Value], path: tuple[str, ...], value: Value) -> None:
    *parents, last = path
    for name in parents:
        row = row.setdefault(name, {})
    row[last] = value


def _names(pointer: str) -> tuple[str, ...]:
    try:
        path = names(pointer)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if not path:
        raise ConfigurationError("a field has a name, such as /total")
    if len(path) > DEPTH_MAX:
        raise ConfigurationError(f"{pointer[:100]}… has {len(path)} names, a field at most {DEPTH_MAX}")
    return path


def _having(text: str) -> Filter:
    try:
        having = compile_filter(text)
    except FilterError as error:
        raise ConfigurationError(f"having: {error}") from None
    if having.moves_by_itself:
        raise ConfigurationError(f"having: {text}: its answer changes with the clock; compare fields of the row")
    return having


def _parsed(pointer: str, text: str) -> Node:
    try:
        return parse(text)
    except FilterError as error:
        raise ConfigurationError(f"{pointer}: {error.of('expression')}") from None


def _compiled(
    pointer: str, text: str, tree: Node, joined: Collection[str] = (), compiler: Compiler | None = None
) -> Evaluate:
    compiler = compiler or Compiler(text, joined)
    try:
        evaluate: Callable[[Value, RecordMetadata], Value] = compiler.expression(tree)
    except FilterError as error:
        raise ConfigurationError(f"{pointer}: {error.of('expression')}") from None
    if joined and compiler.uses_metadata:
        raise ConfigurationError(f"{pointer}: {text}: a join has no metadata; compute this in a view under it")
    if compiler.moves_by_itself:
        raise ConfigurationError(
            f"{pointer}: {text}: its value changes with the clock, and a row with its records alone"
        )
    return evaluate


def _near_aggregate(call: Call) -> str:
    """Return a hint for an unknown function whose name is nearly that of an aggregate."""
    if call.name in function_names():
        return ""
    name = call.name.removesuffix("(*)")
    close = _OTHER_SPELLINGS.get(name) or next(iter(get_close_matches(name, _ONE_ARGUMENT, 1, 0.7)), None)
    starred = "" if name == call.name else "(*)" if close == "COUNT" else " of a field, as only COUNT takes *"
    return "" if close is None else f"; the aggregate is {close}{starred}"


def _calls(node: Node) -> Sequence[Call]:
    own = [node] if isinstance(node, Call) else []
    return [*own, *(call for child in children(node) for call in _calls(child))]


def _shape(node: Node) -> tuple[Any, ...]:
    """Return a tree without its places in the text, as a key: unlike for Python, 2 and 2.0 differ, as in a division."""
    parts: list[Any] = [type(node).__name__]
    for field in dataclass_fields(node):
        if field.name == "at":
            continue
        value = getattr(node, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            is_node = any(each is child for child in children(node))
            parts.append(_shape(each) if is_node else (type(each).__name__, each))
    return tuple(parts)


def _paths(node: Node) -> list[tuple[str | int, ...]]:
    own = [node.parts] if isinstance(node, Path) else []
    return [*own, *(path for child in children(node) for path in _paths(child))]


def _aggregate_in(node: Node) -> Call | None:
    return next((call for call in _calls(node) if call.name in FUNCTIONS), None)


def _error(pointer: str, text: str, at: int, problem: str) -> ConfigurationError:
    return ConfigurationError(f"{pointer}: {syntax_error(text, at, problem, 'expression')}")
