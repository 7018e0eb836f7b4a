"""The model of the test's preprocessor and enricher (merge.md, "Order of the steps")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.programs.oracle.values import MISSING, Path, value_at, with_value

Object = dict[str, Any]


@dataclass(frozen=True)
class Steps:
    """The effects of the plug-ins in `tests/programs/array/plug_ins.py`, if the topic names them."""

    trimmed: tuple[Path, ...] = ()
    """The preprocessor `trim`: texts at these paths lose the white space around them."""
    counted: Path | None = None
    """The enricher `count_updates`: the number of updates of the record, at this path."""
    as_text: bool = False
    """Whether the count is a text, for message types that have no numbers."""

    def preprocessed(self, message: Object) -> Object:
        """The message after preprocessing."""
        for path in self.trimmed:
            value = value_at(message, path)
            if isinstance(value, str):
                message = with_value(message, path, value.strip())
        return message

    def enriched(self, message: Object, previous: Object | None) -> Object:
        """The message after enrichment, which sees the previous record."""
        if self.counted is None:
            return message
        before = MISSING if previous is None else value_at(previous, self.counted)
        count = 1 if before is MISSING or before is None else int(before) + 1
        return with_value(message, self.counted, str(count) if self.as_text else count)
