"""The options of a subscription, as AMPS spells them: `oof,no_empties,timestamp`."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from processor.errors import ConfigurationError
from processor.explanation import unknown_name

_OPTION = re.compile(r"[^,\[]+(?:\[[^\]]*\])?")
_FOR_DELTAS: Final = frozenset(("no_empties", "no_sowkey", "send_keys"))
_FOR_LIVE: Final = frozenset(("oof",))
_NOT_YET: Final = frozenset(("bookmark", "conflation", "conflation_key", "order_by", "select", "skip_n", "top_n"))


class Options(NamedTuple):
    """What a subscriber asked for."""

    oof: bool = False
    """Tell when a record that was received is deleted or expires."""
    no_empties: bool = False
    """Tell nothing of an update that changed nothing."""
    no_sowkey: bool = False
    """Leave `sow_key` out."""
    send_keys: bool = False
    """Key fields come with every delta; they always do."""
    timestamp: bool = False
    """Say when the worker emitted each record."""


def parse_options(text: str | None, *, live: bool, delta: bool) -> Options:
    """Read an options string.

    Args:
        text: names, separated by commas; None or empty for none.
        live: whether the subscription goes on after its snapshot.
        delta: whether it delivers deltas.

    Raises:
        ConfigurationError: an option that does not exist, is not supported yet, or makes no sense here.
    """
    asked: dict[str, bool] = {}
    for part in _OPTION.findall(text or ""):
        name, has_value, _ = (piece.strip() for piece in part.partition("="))
        if not name:
            continue
        if name in _NOT_YET:
            raise ConfigurationError(f"option {name!r} is not supported yet")
        if name not in Options._fields:
            raise ConfigurationError(unknown_name("option", name, list(Options._fields)))
        if has_value:
            raise ConfigurationError(f"option {name!r} takes no value; it is on where it is named")
        if name in _FOR_DELTAS and not delta:
            raise ConfigurationError(f"option {name!r} is for delta subscriptions; this one delivers whole records")
        if name in _FOR_LIVE and not live:
            raise ConfigurationError(f"option {name!r} is for subscriptions; this is a snapshot, nothing leaves it")
        asked[name] = True
    return Options(**asked)


def refuse_not_yet(**arguments: object) -> None:
    """Refuse arguments that will have a meaning: a filter that is ignored would deliver what nobody asked for.

    Raises:
        ConfigurationError: one of them was given.
    """
    for name, value in arguments.items():
        if value is not None:
            noun = "filters are" if name == "filter" else f"{name!r} is"
            raise ConfigurationError(f"{noun} not supported yet")
