"""Finds variables that look like settings and are none: the environment belongs to everybody, so none is refused."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX: Final = "SOWSTREAM_"
_CLOSE: Final = 0.8


def misspelt(variables: Iterable[str], settings: Iterable[str]) -> dict[str, str]:
    """Variables that nobody reads, each with the one that was probably meant; empty if no setting is like it.

    Without a section (`__`) only what is close to a setting is told: images, tests and Kubernetes use the prefix, too.

    Args:
        variables: names of the environment.
        settings: names of the settings at the top level.
    """
    known = [name.upper() for name in settings]
    found = {}
    for variable in variables:
        first, section, rest = variable.upper().removeprefix(PREFIX).partition("__")
        if not variable.upper().startswith(PREFIX) or first in known:
            continue
        close = difflib.get_close_matches(first, known, n=1, cutoff=_CLOSE)
        if close or section:
            found[variable] = f"{PREFIX}{close[0]}{section}{rest}" if close else ""
    return found
