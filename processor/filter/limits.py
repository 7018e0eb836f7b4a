"""Limits of a filter, which may come from anybody, and its work in steps of about 100 ns.

An ordinary record has texts of `ORDINARY_CHARACTERS`, no long arrays, and numbers of usual length. A filter whose work
on such a record is over its budget would be NULL of most records, and is refused when it is compiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from processor.filter.syntax_tree import (
    BeginsWith,
    Call,
    Constant,
    EndsWith,
    If,
    In,
    Like,
    Node,
    Path,
    children,
)

if TYPE_CHECKING:
    from collections.abc import Callable


CHARACTERS_MAX: Final = 65_536
"""Longest filter: a list of some thousand keys is shorter."""

TOKENS_MAX: Final = 2_500
"""Most words and signs of a filter, which take some 20 µs each to compile; a list of constants counts as one."""

DEPTH_MAX: Final = 100
"""Most operators and calls in one another. Each takes a few frames of Python's stack, which has a thousand."""

PATH_PARTS_MAX: Final = 300
"""Most names and places of a path: more than the levels of the deepest record."""

PATTERN_BYTES_MAX: Final = 1 << 20
"""Memory that the program of one regular expression may take, and the states that its searches keep."""

PATTERN_CHARACTERS_MAX: Final = 1_000
"""Longest regular expressions of a filter, added up: `\\pL` takes 50 µs to compile each time."""

STEPS_MAX: Final = 100_000
"""Work of one evaluation, in steps of about 100 ns: an element of an array that is looked at is one."""

STEPS_ORDINARY_MAX: Final = 20_000
"""Work on an ordinary record that a filter may ask for; one that asks for more is refused when it is compiled."""

MADE_CHARACTERS_MAX: Final = 1_000_000
"""Characters of all texts that functions make in one evaluation."""

ORDINARY_CHARACTERS: Final = 256
"""Length of a text in an ordinary record."""

FREE_STEPS: Final = 200
"""Steps that an operator or function may take without being counted, in a filter of few of them."""

FREE_CHARACTERS: Final = 1_000
"""Characters that a function may make without being counted, likewise."""

FEW_ELEMENTS: Final = 8
"""Elements of an array up to which they are part of the work of its operator, and are never counted."""

SHORT_CHARACTERS: Final = 64
"""Length of a text up to which it is part of the work of its function, likewise."""

COUNTED_FROM_STEPS: Final = 100
"""Work on an ordinary record from which on each evaluation is counted from its beginning."""

NUMBER_CHARACTERS_MAX: Final = 100
"""Longest text that is a number."""

DIGITS_MAX: Final = 1_000
"""Most digits of a number; one with more is NAN."""

FORMAT_CHARACTERS_MAX: Final = 64
"""Longest format of STRFTIME and STRPTIME; a longer one gives NULL."""

TIME_CHARACTERS_MAX: Final = 100
"""Longest text that INSTANT reads; of a longer one it is NULL."""

CONVERSION_STEPS: Final = 8
"""Steps to compare an element of another kind than the constant, such as a text with a number."""

SEARCH_STEPS: Final = 8
"""Steps to search in one of many short texts, or to make a text of a number."""

PREPARATION_STEPS: Final = 32
"""Steps for each element of two arrays that are compared with one another."""

_NUMBER_CHARACTERS: Final = 32
"""Length of a number as text."""

_FUNCTION_STEPS: Final = 4
"""Steps of a function that has no entry below."""

_STEPS: Final = {
    **dict.fromkeys(("ROUND", "FLOOR", "CEILING"), 30),
    **dict.fromkeys(("LN", "LOG10", "LOG2", "EXP"), 200),
    "POWER": 1000,
    "STRFTIME": 60,
    "STRPTIME": 200,
    "INSTANT": 30,
    "REGEXP_REPLACE": 50,
    "GREATEST": 16,
    "LEAST": 16,
}
"""Steps of a function on an ordinary record."""

_COPIES: Final = frozenset(
    ("UPPER", "LOWER", "REVERSE", "SUBSTR", "LEFT", "RIGHT", "TRIM", "LTRIM", "RTRIM", "CONCAT", "REPLACE")
)
"""Functions that make a text of their first argument, or of all of them."""


def lookup_steps(characters: int) -> int:
    """Steps to compare a text with another one, or its beginning or end."""
    return characters >> 10


def find_steps(characters: int, part_characters: int) -> int:
    """Steps to find a part in a text: Python tries each place in short texts, so that both lengths count."""
    if part_characters == 1:
        return characters >> 8
    if characters < 2_500 or (part_characters < 100 and characters < 30_000):
        return characters * min(part_characters, 500) >> 8
    return characters >> 4


def case_steps(characters: int, *, is_ascii: bool) -> int:
    """Steps to change the case of a text."""
    return characters >> (7 if is_ascii else 3)


class Estimate:
    """The work of a filter on an ordinary record, added up while its tree is walked."""

    def __init__(
        self, refuse: Callable[[Node, str], Exception], pattern_steps: Callable[[str], Callable[[int], int]]
    ) -> None:
        """Begin with none.

        Args:
            refuse: makes the error for a node and a problem.
            pattern_steps: the steps of a search for a pattern, by the length of the text.
        """
        self._refuse = refuse
        self._pattern_steps = pattern_steps
        self._made = 0
        self.steps = 0
        """The steps until now."""

    def add(self, node: Node) -> int:
        """Add the work of a node and of all below it; return the length of its value as text.

        Raises:
            FilterError: it is over the budget.
        """
        if isinstance(node, Constant):
            return len(node.value) if isinstance(node.value, str) else _NUMBER_CHARACTERS
        if isinstance(node, Path):
            self.steps += 1
            return ORDINARY_CHARACTERS
        if isinstance(node, In):
            # Constants are looked up, however many there are.
            sizes = [self.add(node.operand), *(self.add(one) for one in node.choices if not isinstance(one, Constant))]
        else:
            sizes = [self.add(child) for child in children(node)]
        size, steps = self._own(node, sizes)
        self.steps += steps
        if self._made > MADE_CHARACTERS_MAX:
            raise self._refuse(
                node,
                f"up to here its functions make texts of {self._made:,} characters for a record with texts of "
                f"{ORDINARY_CHARACTERS}, and may make {MADE_CHARACTERS_MAX:,}: nest fewer, or use shorter texts",
            )
        if self.steps > STEPS_ORDINARY_MAX:
            raise self._refuse(
                node,
                f"up to here it takes {self.steps:,} steps for a record with texts of {ORDINARY_CHARACTERS} "
                f"characters, and may take {STEPS_ORDINARY_MAX:,}: make it shorter, or its texts and patterns",
            )
        return size

    def _own(self, node: Node, sizes: list[int]) -> tuple[int, int]:
        """The length of a node's value as text, and its own steps."""
        match node:
            case Call():
                return self._call(node, sizes)
            case If():
                return max(sizes[1:]), 1
            case Like():
                return 0, 2 + self._pattern_steps(node.pattern)(sizes[0])
            case BeginsWith() | EndsWith():
                return 0, 2 + len(node.texts) // 4 + lookup_steps(sizes[0])
        # A long constant next to a field costs no more than the shorter of the two.
        return _NUMBER_CHARACTERS, 1 + lookup_steps(min(sizes, default=0))

    def _call(self, node: Call, sizes: list[int]) -> tuple[int, int]:
        name, steps = node.name, _STEPS.get(node.name, _FUNCTION_STEPS) + sum(sizes) // 128
        if name in ("INSTR", "INSTR_I"):
            return _NUMBER_CHARACTERS, steps + find_steps(sizes[0], sizes[1])
        if name in ("COALESCE", "GREATEST", "LEAST"):
            return max(sizes), steps + len(sizes)
        if name == "STRFTIME":
            return sizes[0] * 4, steps
        if name == "REPLACE" and len(sizes) == 3:
            size = max(sizes[0], sizes[0] // max(1, self._least(node.arguments[1])) * sizes[2])
            steps += find_steps(sizes[0], sizes[1])
        elif name == "REGEXP_REPLACE" and len(sizes) == 3:
            size = sizes[0] + (sizes[0] + 1) * sizes[2]
            pattern = node.arguments[1]
            if isinstance(pattern, Constant) and isinstance(pattern.value, str):
                steps += 2 * self._pattern_steps(pattern.value)(sizes[0])
        elif name in _COPIES:
            size = sum(sizes) if name == "CONCAT" else sizes[0] if sizes else 0
        else:
            return ORDINARY_CHARACTERS, steps
        self._made += size
        return size, steps + size // 64

    def _least(self, node: Node) -> int:
        """The least length of a part that is replaced."""
        return len(node.value) if isinstance(node, Constant) and isinstance(node.value, str) else 1
