"""Limits of a filter's size and work: it may come from anybody."""

from __future__ import annotations

from typing import Final

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
"""Work of one evaluation, in steps of about 100 ns: an element of an array that is looked at is one (`cost.py`)."""

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
