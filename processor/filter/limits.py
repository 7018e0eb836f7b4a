"""Limits of a filter's size: it may come from anybody."""

from __future__ import annotations

from typing import Final

CHARACTERS_MAX: Final = 65_536
"""Longest filter. A list of some thousand keys is shorter; it is parsed in about a second."""

DEPTH_MAX: Final = 100
"""Most operators and calls in one another. Each takes a few frames of Python's stack, which has a thousand."""

PATTERN_BYTES_MAX: Final = 1 << 20
"""Memory that the program of one regular expression may take, and the states that its searches keep."""

TEXT_CHARACTERS_MAX: Final = 1 << 24
"""Longest text that a function makes of others; a longer one is NULL: `REPLACE(/a, 'x', /a)` may ask for a terabyte."""

FORMAT_CHARACTERS_MAX: Final = 64
"""Longest format of STRPTIME, which may stand in a record; a longer one gives NULL."""
