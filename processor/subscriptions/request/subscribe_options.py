"""The options of a subscription, as AMPS spells them: `oof,no_empties,conflation=500ms,select=[-/,+/id]`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, TypedDict

from processor.config.section import interval_s
from processor.errors import ConfigurationError, unknown_name
from processor.filter.value import PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_TOKEN: Final = re.compile(
    r"""'(?:[^'\\]++|\\.)*+(?:'|\\?\Z)|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|(?<!\w)[rR](?:'[^']*+(?:'|\Z)|"[^"]*+(?:"|\Z))|[][(),]""",
    re.DOTALL,
)
"""The tokens that decide: a text in quotes, as in filters, a bracket, a comma. A text without its last quote goes on to
the end: nothing is gone through twice."""


class Item(NamedTuple):
    """One item of a list."""

    text: str
    """Without the white space round it."""
    at: int
    """Its begin in the list, in characters from 0; of an empty one, the place where it should be."""


def split(text: str) -> list[Item]:
    """The items of a list, one more than it has commas.

    A bracket without its partner counts as if it had one at the end: the reader of the items reports it.
    """
    items: list[Item] = []
    begin = depth = 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in "[(":
            depth += 1
        elif sign in "])":
            depth = max(0, depth - 1)
        elif sign == "," and not depth:
            items.append(_item(text, begin, token.start()))
            begin = token.end()
    items.append(_item(text, begin, len(text)))
    return items


def _item(text: str, begin: int, end: int) -> Item:
    """The item between two places."""
    part = text[begin:end]
    stripped = part.lstrip()
    return Item(stripped.rstrip(), begin + len(part) - len(stripped) if stripped else end)


class Form(TypedDict):
    """The kind of a subscription."""

    snapshot: bool
    """True if it delivers the state of the world first."""
    live: bool
    """True if it delivers updates."""
    delta: bool
    """True if updates are delivered as deltas."""


SubscribeCall: TypeAlias = Literal[
    "sow", "subscribe", "sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"
]

FORMS: Final[Mapping[str, Form]] = {
    "sow": Form(snapshot=True, live=False, delta=False),
    "subscribe": Form(snapshot=False, live=True, delta=False),
    "sow_and_subscribe": Form(snapshot=True, live=True, delta=False),
    "delta_subscribe": Form(snapshot=False, live=True, delta=True),
    "sow_and_delta_subscribe": Form(snapshot=True, live=True, delta=True),
}
"""The subscribing calls, which are the ops of a gateway too, with their forms."""

Conflation: TypeAlias = float | Literal["auto", "none"] | None
"""Seconds that a key's updates are held back; `auto`: until the subscriber takes them; `none`: not even if it is slow.
None: by default, updates are conflated only while a subscriber is slow."""

INTERVAL_MIN_S: Final = 0.1
"""Least interval of a subscription's conflation, as of a conflated topic."""
_PATH: Final = re.compile(PATH, re.DOTALL)


class Options(NamedTuple):
    """The options of one subscription."""

    oof: bool = False
    """Send an `oof` when a record that was received goes out of focus."""
    no_empties: bool = False
    """Send no message for an update that changed none of the selected fields."""
    no_sowkey: bool = False
    """Leave `sow_key` out."""
    send_keys: bool = False
    """Key fields come with every delta; they always do."""
    timestamp: bool = False
    """Send the time at which the worker emitted each record."""
    select: str | None = None
    """The select list, such as `-/,+/id,+/a/b`; None: the whole record."""
    conflation: Conflation = None
    """Time for which the updates of a key are conflated."""
    conflation_key: tuple[str, ...] = ()
    """Paths whose values, together, are conflated as one key; none: the SOW key."""
    order_by: str | None = None
    """The order of the records, such as `/price DESC,/id`."""
    top_n: int | None = None
    """Largest number of records of that order; None: all."""
    skip_n: int = 0
    """Number of its first records that are left out."""
    grouping: tuple[str, ...] = ()
    """Paths whose values make a group: with `projection`, a message is about a group and not about a record."""
    projection: str | None = None
    """The fields of a group, such as `SUM(/qty) AS /qty,COUNT(*) AS /orders`."""
    bookmark: str | None = None
    """Begin of a replay: a token, `epoch`, `now` or an ISO 8601 time; None: it is no replay."""

    @property
    def is_window(self) -> bool:
        """True if only some records of an order are delivered."""
        return self.top_n is not None or self.skip_n > 0


_FOR_DELTAS: Final = frozenset(("no_empties", "no_sowkey", "send_keys"))
_FOR_LIVE: Final = frozenset(("oof", "conflation", "conflation_key", "bookmark"))


def parse_options(text: str | None, *, snapshot: bool = False, live: bool, delta: bool, **arguments: object) -> Options:
    """Parse an options string, and arguments with the names of options.

    Args:
        text: names, some with a value, separated by commas; a value in brackets may hold commas. None or empty: none.
        snapshot: whether the subscription begins with a snapshot.
        live: whether it goes on from there.
        delta: whether it delivers deltas.
        arguments: options by name; None is ignored, as is False for an option without a value.

    Raises:
        ConfigurationError: an option that does not exist, has a bad value, is given twice, or makes no sense here.
    """
    asked: dict[str, object] = {}
    for name, value in _parts(text or ""):
        if name in asked:
            raise ConfigurationError(f"option {name!r} is given twice")
        asked[name] = _read(name, value)
    for name, argument in arguments.items():
        if argument is None or (argument is False and name in FLAGS):
            continue
        if name in asked:
            raise ConfigurationError(f"{name!r} is given twice: in the options and as an argument")
        asked[name] = _taken(name, argument)
    options = Options(**asked)  # type: ignore[arg-type]
    _check(options, asked, snapshot=snapshot, live=live, delta=delta)
    return options


def _parts(text: str) -> Iterator[tuple[str, str | None]]:
    """Each name with its value, None where it has none."""
    for item in split(text):
        name, has_value, value = (piece.strip() for piece in item.text.partition("="))
        if name or has_value:
            yield name, (value if has_value else None)


def _read(name: str, value: str | None) -> object:
    """The value of an option in a text."""
    _check_name(name)
    if name in FLAGS:
        if value is not None:
            raise ConfigurationError(f"option {name!r} takes no value; it is on where it is named")
        return True
    if value and value.startswith("["):
        if not value.endswith("]"):
            raise ConfigurationError(f"option {name!r}: the value begins with [ and does not end with ]")
        value = value[1:-1].strip()
    if not value:
        raise ConfigurationError(f"option {name!r} needs a value, such as {_EXAMPLES[name]}")
    return _READERS[name](name, value)


def _taken(name: str, argument: object) -> object:
    """The value of an argument: as in a text, a number, or a list of the parts that commas separate there."""
    _check_name(name)
    if name in FLAGS:
        if argument is not True:
            raise ConfigurationError(f"option {name!r} is {argument!r}, not True or False")
        return True
    if isinstance(argument, list | tuple):
        return _read(name, f"[{','.join(map(str, argument))}]")
    return _read(name, str(argument))


def _check_name(name: str) -> None:
    """Reject a name that is no option."""
    if name == "filter":
        raise ConfigurationError("a filter is no option: give it as the argument 'filter'")
    if name not in Options._fields:
        hint = "" if name.isidentifier() else "; a value with commas is written in brackets: select=[-/,+/id]"
        raise ConfigurationError(unknown_name("option", name, list(Options._fields)) + hint)


def _conflation(name: str, value: str) -> Conflation:
    if value in ("auto", "none"):
        return value  # type: ignore[return-value]
    try:
        seconds = float(interval_s(value))  # type: ignore[arg-type]
    except ValueError as error:
        raise ConfigurationError(f"option {name!r}: {error}, or auto, or none") from None
    if not INTERVAL_MIN_S <= seconds < float("inf"):
        raise ConfigurationError(f"option {name!r}: {value!r} is no interval for it; the least is 100ms")
    return seconds


def _count(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise ConfigurationError(f"option {name!r} is {value!r}, not a number of records")
    return int(value)


def _paths(name: str, value: str) -> tuple[str, ...]:
    paths = tuple(item.text for item in split(value))
    for path in paths:
        if not _PATH.fullmatch(path):
            raise ConfigurationError(f"option {name!r}: {path!r} is not a path; write [/a,/b]")
    return paths


def _text(_name: str, value: str) -> str:
    return value


FLAGS: Final = frozenset(name for name, default in Options._field_defaults.items() if default is False)
"""The options without a value."""
_READERS: Final[dict[str, Callable[[str, str], object]]] = {
    "select": _text,
    "conflation": _conflation,
    "conflation_key": _paths,
    "grouping": _paths,
    "projection": _text,
    "order_by": _text,
    "top_n": _count,
    "skip_n": _count,
    "bookmark": _text,
}
_EXAMPLES: Final = {
    "select": "select=[-/,+/id]",
    "conflation": "conflation=500ms",
    "conflation_key": "conflation_key=[/a,/b]",
    "grouping": "grouping=[/customer]",
    "projection": "projection=[SUM(/qty) AS /qty]",
    "order_by": "order_by=[/price DESC]",
    "top_n": "top_n=10",
    "skip_n": "skip_n=10",
    "bookmark": "bookmark=epoch",
}


def _check(options: Options, asked: dict[str, object], *, snapshot: bool, live: bool, delta: bool) -> None:
    """Reject options that contradict the call: an option that is ignored would deliver other messages than expected."""
    for name in asked:
        if name in _FOR_DELTAS and not delta:
            raise ConfigurationError(f"option {name!r} is for delta subscriptions; this one delivers whole records")
        if name in _FOR_LIVE and not live:
            raise ConfigurationError(f"option {name!r} is for subscriptions; this is a snapshot, nothing follows it")
    if options.bookmark is not None:
        if delta:
            raise ConfigurationError(
                "option 'bookmark' replays whole records; a delta subscription has its past in its snapshot: "
                "use sow_and_delta_subscribe"
            )
        if options.is_window:
            raise ConfigurationError("option 'bookmark' replays updates; top_n and skip_n are of records")
    if options.order_by is not None and not snapshot and not options.is_window:
        raise ConfigurationError("option 'order_by' orders a snapshot, or a window: give top_n too")
    if options.conflation_key and (delta or options.oof or options.is_window):
        raise ConfigurationError(
            "option 'conflation_key' makes one record stand for others: it is for whole records, without oof and top_n"
        )
    if options.grouping and options.projection is None:
        raise ConfigurationError("option 'grouping' needs 'projection', such as projection=[COUNT(*) AS /count]")
    if options.projection is not None and (options.conflation_key or options.bookmark is not None):
        other = "conflation_key" if options.conflation_key else "bookmark"
        raise ConfigurationError(f"option 'projection' is of groups, and {other!r} of records: leave one of them out")
    if options.conflation_key and options.conflation in (None, "none"):
        raise ConfigurationError("option 'conflation_key' says what is conflated: give conflation too")
