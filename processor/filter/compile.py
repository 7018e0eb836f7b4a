"""Makes functions of a tree, once: a filter is then calls of closures, each made for its operands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from processor.errors import ConfigurationError, unknown_name
from processor.filter import predicate
from processor.filter.arithmetic import OF_FLOATS, negative, operation
from processor.filter.compare import MIRRORED
from processor.filter.evaluation import Evaluate, Function, RecordMetadata, compile_path, within_budget
from processor.filter.functions import find_function, function_names
from processor.filter.limits import PATTERN_CHARACTERS_MAX, Estimate
from processor.filter.parse import syntax_error
from processor.filter.pattern import BadPattern, is_plain_pattern, replacer, search_steps, searcher
from processor.filter.predicate import truth
from processor.filter.syntax_tree import (
    JOINED_MARK,
    PREDICATES,
    And,
    Arithmetic,
    BeginsWith,
    Between,
    Call,
    Compare,
    Constant,
    EndsWith,
    If,
    In,
    IsNan,
    IsNull,
    Like,
    Missing,
    Negative,
    Node,
    Not,
    Or,
    Path,
)
from processor.filter.text_functions import regexp_replace
from processor.filter.time_functions import unknown_directive
from processor.filter.value import NAN, first
from processor.record import Value

MISSING_MISPLACED: Final = (
    "MISSING is no value: it is a whole expression of `preprocess` or `enrich`, or a result of IF there"
)
_FORMAT_PLACES: Final = {"STRFTIME": 0, "STRPTIME": 1}
"""The functions of formats of times, and the place of the format among their arguments."""
_NAME_SHOWN_MAX: Final = 40
"""Most characters of a name that is none."""


class Compiler:
    """Compiles one filter, and notes the metadata that it uses.

    `condition` and `expression` give functions that keep to their budget; `truth` and `value` are their parts.
    """

    moves_by_itself: bool
    """True if it uses a function whose value moves although nothing changed."""
    uses_metadata: bool
    """True if it uses the metadata of a record."""

    def __init__(self, text: str, joined: Collection[str] = ()) -> None:
        """Begin with a filter.

        Args:
            text: what is compiled, for errors.
            joined: the topics whose fields it may name as `[topic]./path`; `JOINED_MARK` begins their member.
        """
        self._text = text
        self._joined = joined
        self.moves_by_itself = False
        self.uses_metadata = False
        self._pattern_characters = 0

    def condition(self, tree: Node) -> Evaluate:
        """The filter of a tree: True, False or None, and None where its budget is exceeded.

        Raises:
            FilterError: a function or a pattern that there is not, or more work than a filter may ask for.
        """
        compiled = self.truth(tree)
        return within_budget(compiled, self.steps(tree))

    def expression(self, tree: Node) -> Evaluate:
        """The value of a tree, likewise."""
        compiled = self.value(tree)
        return compiled if isinstance(tree, Constant) else within_budget(compiled, self.steps(tree))

    def steps(self, tree: Node) -> int:
        """The steps of a tree on an ordinary record.

        Raises:
            FilterError: they are more than a filter may ask for; the message shows the place.
        """
        estimate = Estimate(lambda node, problem: syntax_error(self._text, node.at, problem), search_steps)
        estimate.add(tree)
        return estimate.steps

    def truth(self, node: Node) -> Evaluate:
        """The node as a truth value: True, False or None."""
        if isinstance(node, And | Or):
            return self._operands(node)
        if isinstance(node, Not):
            operand = self.truth(node.operand)
            return predicate.does_not_hold(operand) if _is_never_null(node.operand) else predicate.negation(operand)
        value = self.value(node)
        return value if _is_never_null(node) else lambda record, metadata: truth(value(record, metadata), metadata)

    def value(self, node: Node) -> Evaluate:
        """The node as a value, as it is: a path may lead to an array or an object.

        Raises:
            FilterError: a function or a pattern that there is not, with its place.
        """
        match node:
            case Constant():
                constant = node.value
                return lambda record, metadata: constant  # noqa: ARG005
            case Path():
                return compile_path(self._checked_path(node))
            case Missing():
                raise syntax_error(self._text, node.at, MISSING_MISPLACED)
            case And() | Or() | Not():
                return self.truth(node)
            case Compare():
                return self._compare(node)
            case Between() | In():
                return self._range(node)
            case Like() | BeginsWith() | EndsWith() | IsNull() | IsNan():
                return self._check(node)
            case Arithmetic():
                return self._arithmetic(node)
            case Negative():
                operand = self.value(node.operand)
                return lambda record, metadata: negative(first(operand(record, metadata)))
            case If():
                return self._if(node)
            case Call():
                return self._call(node)

    def _operands(self, node: And | Or) -> Evaluate:
        operands = [self.truth(operand) for operand in node.operands]
        is_and = isinstance(node, And)
        if _is_never_null(node):
            return predicate.all_hold(operands) if is_and else predicate.any_holds(operands)
        return predicate.both(operands) if is_and else predicate.either(operands)

    def _compare(self, node: Compare) -> Evaluate:
        name, left, right = node.operator, node.left, node.right
        if isinstance(left, Constant) and not isinstance(right, Constant):
            name, left, right = MIRRORED[name], right, left
        if not isinstance(right, Constant):
            return predicate.compare_values(name, self.value(left), self.value(right))
        if isinstance(left, Path) and len(left.parts) == 1 and isinstance(left.parts[0], str):
            return predicate.compare_member(name, left.parts[0], right.value)
        return predicate.on(self.value(left), predicate.compare_with(name, right.value))

    def _range(self, node: Between | In) -> Evaluate:
        operand = self.value(node.operand)
        if isinstance(node, Between):
            if isinstance(node.low, Constant) and isinstance(node.high, Constant):
                return predicate.on(operand, predicate.between_constants(node.low.value, node.high.value))
            return predicate.between(operand, self.value(node.low), self.value(node.high))
        constants = [choice.value for choice in node.choices if isinstance(choice, Constant)]
        if len(constants) == len(node.choices):
            return predicate.on(operand, predicate.among_constants(constants))
        return predicate.among(operand, [self.value(choice) for choice in node.choices])

    def _check(self, node: Like | BeginsWith | EndsWith | IsNull | IsNan) -> Evaluate:
        operand = self.value(node.operand)
        match node:
            case Like():
                self._check_pattern(node.pattern, node.at)
                try:
                    search = searcher(node.pattern)
                    return predicate.on(operand, predicate.matching(search, search_steps(node.pattern)))
                except BadPattern as error:
                    raise syntax_error(self._text, node.at, f"no regular expression: {error}") from None
            case BeginsWith():
                return predicate.on(operand, predicate.beginning(node.texts))
            case EndsWith():
                return predicate.on(operand, predicate.ending(node.texts))
            case IsNull():
                return predicate.on(operand, predicate.null)
            case IsNan():
                return predicate.on(operand, predicate.not_a_number)

    def _arithmetic(self, node: Arithmetic) -> Evaluate:
        left, right, compute = self.value(node.left), self.value(node.right), operation(node.operator)
        of_floats = OF_FLOATS[node.operator]

        def calculate(record: Value, metadata: RecordMetadata) -> Value:
            one, other = left(record, metadata), right(record, metadata)
            kind, other_kind = type(one), type(other)
            # Numbers, as nearly always, need no conversion.
            if (kind is float and (other_kind is float or other_kind is int)) or (kind is int and other_kind is float):
                try:
                    return of_floats(one, other)
                except (ArithmeticError, ValueError):
                    return NAN
            if kind is not int and kind is not float:
                one = first(one)
            if other_kind is not int and other_kind is not float:
                other = first(other)
            return compute(one, other)

        return calculate

    def _if(self, node: If) -> Evaluate:
        condition, then, otherwise = self.truth(node.condition), self.value(node.then), self.value(node.otherwise)
        return lambda record, metadata: (
            then(record, metadata) if condition(record, metadata) else otherwise(record, metadata)
        )

    def _call(self, node: Call) -> Evaluate:
        function = self._function(node)
        self.moves_by_itself |= function.moves_by_itself
        call, arguments = function.call, list(node.arguments)
        if (place := _FORMAT_PLACES.get(node.name)) is not None:
            self._check_format(arguments[place], is_read=place > 0)
        if call is regexp_replace:
            call = partial(call, self._replacer(arguments.pop(1)))
        values = [self.value(argument) for argument in arguments]
        if function.takes == "metadata":
            self.uses_metadata = True
            return lambda record, metadata: call(metadata)  # noqa: ARG005
        if function.is_counted:
            return self._counted_call(function, call, values)
        if function.takes == "arrays":
            return lambda record, metadata: call(*[value(record, metadata) for value in values])
        if function.takes == "nulls":
            return lambda record, metadata: call(*[first(value(record, metadata)) for value in values])

        def call_without_null(record: Value, metadata: RecordMetadata) -> Value:
            given = [first(value(record, metadata)) for value in values]
            return None if None in given else call(*given)

        return call_without_null

    def _counted_call(self, function: Function, call: Callable[..., Value], values: list[Evaluate]) -> Evaluate:
        """A call of a function that takes from the budget, which comes with the metadata."""
        if function.takes == "arrays":
            return lambda record, metadata: call(metadata, *[value(record, metadata) for value in values])
        if function.takes == "nulls":
            return lambda record, metadata: call(metadata, *[first(value(record, metadata)) for value in values])

        def call_without_null(record: Value, metadata: RecordMetadata) -> Value:
            given = [first(value(record, metadata)) for value in values]
            return None if None in given else call(metadata, *given)

        return call_without_null

    def _function(self, node: Call) -> Function:
        try:
            function = find_function(node.name)
        except ConfigurationError as error:
            raise syntax_error(self._text, node.at, str(error)) from None
        if node.name == "IF":
            raise syntax_error(
                self._text, node.at, f"IF takes 3 arguments; here it has {len(node.arguments) or 'none'}"
            )
        if function is None:
            known = unknown_name("function", node.name[:_NAME_SHOWN_MAX], function_names())
            raise syntax_error(self._text, node.at, known)
        count = len(node.arguments)
        if count < function.least or (function.most is not None and count > function.most):
            raise syntax_error(
                self._text, node.at, f"{node.name} takes {function.arity()}; here it has {count or 'none'}"
            )
        return function

    def _checked_path(self, node: Path) -> tuple[str | int, ...]:
        """The parts of a path; one into another topic is for joins alone."""
        first_part = node.parts[0]
        if isinstance(first_part, str) and first_part.startswith(JOINED_MARK):
            topic = first_part.removeprefix(JOINED_MARK)
            if topic not in self._joined:
                joined = f"joined are {', '.join(self._joined)}" if self._joined else "only a view with `join` has them"
                raise syntax_error(self._text, node.at, f"no topic {topic!r} is joined here; {joined}")
        return node.parts

    def _check_format(self, node: Node, *, is_read: bool) -> None:
        """Refuse a format of times with a directive that is none."""
        if isinstance(node, Constant) and isinstance(node.value, str):
            unknown = unknown_directive(node.value, is_read=is_read)
            if unknown is not None:
                problem = f"the format has {unknown!r}, which is no directive here; the filters' README lists them"
                raise syntax_error(self._text, node.at, problem)

    def _check_pattern(self, pattern: str, at: int) -> None:
        """Refuse patterns that would take too long to compile: one that is a plain text takes no time."""
        self._pattern_characters += 0 if is_plain_pattern(pattern) else len(pattern)
        if self._pattern_characters > PATTERN_CHARACTERS_MAX:
            problem = (
                f"the regular expressions of this filter have {self._pattern_characters:,} characters, and may have "
                f"{PATTERN_CHARACTERS_MAX:,}; make them shorter"
            )
            raise syntax_error(self._text, at, problem)

    def _replacer(self, node: Node) -> object:
        if not isinstance(node, Constant) or not isinstance(node.value, str):
            raise syntax_error(self._text, node.at, "the pattern of REGEXP_REPLACE is a text in quotes, nothing else")
        self._check_pattern(node.value, node.at)
        try:
            return replacer(node.value)
        except BadPattern as error:
            raise syntax_error(self._text, node.at, f"no regular expression: {error}") from None


def _is_never_null(node: Node) -> bool:
    """Return whether a node is true or false for all operands."""
    match node:
        case And() | Or():
            return all(map(_is_never_null, node.operands))
        case Not():
            return _is_never_null(node.operand)
        case Constant():
            return isinstance(node.value, bool)
        case _:
            return isinstance(node, PREDICATES)
