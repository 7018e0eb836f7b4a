"""The options that select a topic's records, their fields and their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from processor.cli.output import inform

if TYPE_CHECKING:
    from collections.abc import Mapping

Filter: TypeAlias = Annotated[
    str | None, typer.Option("--filter", metavar="FILTER", help='Which records, such as "/qty > 10".')
]
Select: TypeAlias = Annotated[
    str | None, typer.Option("--select", metavar="LIST", help="Which fields, such as -/,+/id,+/qty.")
]
OrderBy: TypeAlias = Annotated[
    str | None, typer.Option("--order-by", metavar="ORDER", help='In what order, such as "/qty DESC,/id".')
]
TopN: TypeAlias = Annotated[
    int | None, typer.Option("--top-n", min=0, metavar="N", help="At most N records of that order.")
]
SkipN: TypeAlias = Annotated[
    int | None, typer.Option("--skip-n", min=0, metavar="N", help="Without the first N of that order.")
]
SkipUnreadable: TypeAlias = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out records that cannot be read, and say which at the end.")
]

_SHOWN_MAX: Final = 10


def print_unreadable(unreadable: Mapping[str, Mapping[str, str]]) -> None:
    """Print the records that were left out: for each topic the number, and the first of them with the reason."""
    for topic, reasons in unreadable.items():
        inform(f"{topic}: {len(reasons)} records cannot be read and were left out:")
        for key, reason in list(reasons.items())[:_SHOWN_MAX]:
            inform(f"  {key!r:.100}: {reason}")
