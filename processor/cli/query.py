"""The flags that say which records of a topic are wanted, which of their fields, and in what order."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

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
