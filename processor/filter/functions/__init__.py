"""The built-in functions, by name."""

from __future__ import annotations

from typing import Final

from processor.filter.function import Function
from processor.filter.functions import arrays, numbers, records, texts, times

BUILT_IN: Final[dict[str, Function]] = {
    function.name: function for module in (texts, numbers, times, arrays, records) for function in module.FUNCTIONS
}
"""Every built-in function by its name in capitals."""
