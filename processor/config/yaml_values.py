"""Parses YAML so that values keep the text that was written, where YAML reads another one.

YAML 1.1 reads `01234` as an octal number, `22:22` as 1342, `yes` as true, `1.10` as 1.1 and `2026-11-27` as a date.
Forms that are hardly ever meant so are refused with their place; others become a value of a class of their own, so that
a setting that is a text refuses them and any other setting takes them.
Messages show no text of a value, which may be a password.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeAlias

import yaml

QUOTES: Final = "write it in quotes"
"""The remedy for a text that YAML reads as another value."""

_LEADING_ZERO: Final = re.compile(r"[-+]?0[0-9_]+")
_QUOTED: Final = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
"""The parser's quotes: of the text, and of the kinds of its own tokens."""

_TOKENS: Final = frozenset(kind.id for kind in yaml.Token.__subclasses__() if hasattr(kind, "id"))
"""The kinds of the parser's tokens, such as `]` and `<stream end>`; all else that it quotes may be a password."""


class WrittenInt(int):
    """A whole number that was not written in plain decimal digits, such as `0x10` or `1_000`."""


class WrittenFloat(float):
    """A number with a fraction that Python writes in another way, such as `1.10` or `1.0e3`."""


class WrittenWord(str):
    """An unquoted yes, no, on or off: a text, as in YAML 1.2, which a setting that is true or false takes too."""

    __slots__ = ()


Odd: TypeAlias = WrittenInt | WrittenFloat | WrittenWord
"""A value that may be meant as another text."""


class UnclearError(yaml.constructor.ConstructorError):
    """A setting is well-formed YAML, and hardly means the value that YAML reads."""


class TwiceError(UnclearError):
    """A name stands in a mapping twice; `first_line` is that of the first one."""

    def __init__(self, name: str, first_line: int, mark: Any) -> None:
        super().__init__(None, None, f"{name!r} stands here and in line {first_line}", mark)
        self.first_line: Final = first_line


class _Loader(yaml.SafeLoader):
    """The safe loader, which keeps how a value was written, and takes a key twice as an error."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build one value.

        Raises:
            UnclearError: it is none of its kind, as `!!int x`: PyYAML answers those with errors of Python's.
        """
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            raise _unclear(f"the text is no value of the kind {node.tag.rpartition(':')[2]}", node) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build one mapping.

        Raises:
            UnclearError: a key appears in it twice: YAML's own loader would drop the first of two values.
        """
        seen: dict[Any, yaml.Node] = {}
        for key, _ in node.value:
            # Keys that `<<` brings in may be overridden: that is its purpose.
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            first = seen.setdefault(self.construct_object(key), key)
            if first is not key:
                raise TwiceError(key.value, first.start_mark.line + 1, key.start_mark)
        return super().construct_mapping(node, deep)

    def _bool(self, node: yaml.ScalarNode) -> bool | WrittenWord:
        return node.value.lower() == "true" if node.value.lower() in ("true", "false") else WrittenWord(node.value)

    def _int(self, node: yaml.ScalarNode) -> int:
        text = node.value
        if _LEADING_ZERO.fullmatch(text):
            raise _unclear(f"a number that begins with 0 is octal in YAML; {QUOTES}, or leave out the 0", node)
        if ":" in text:
            raise _unclear(f"YAML reads a number with ':' to the base 60; {QUOTES}", node)
        number = self.construct_yaml_int(node)
        return number if text == str(number) else WrittenInt(number)

    def _float(self, node: yaml.ScalarNode) -> float:
        if ":" in node.value:
            raise _unclear(f"YAML reads a number with ':' to the base 60; {QUOTES}", node)
        return written_float(self.construct_yaml_float(node), node.value)

    def _date(self, node: yaml.ScalarNode) -> Any:
        raise _unclear(f"YAML reads a date; {QUOTES}", node)


for _tag, _constructor in (
    ("bool", _Loader._bool),  # noqa: SLF001 - of its own class
    ("int", _Loader._int),  # noqa: SLF001
    ("float", _Loader._float),  # noqa: SLF001
    ("timestamp", _Loader._date),  # noqa: SLF001
):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _constructor)


def parse(text: str) -> Any:
    """Parse a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, has a setting twice, or a value that is hardly meant as YAML reads it.
            There is no other error: callers keep what they had, and could not after one that they do not expect.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a safe loader
    except yaml.YAMLError:
        raise
    except RecursionError:
        raise UnclearError(None, None, "nested deeper than can be read") from None
    except Exception as error:  # noqa: BLE001 - PyYAML answers a wrong escape with the error of `chr`, and so on.
        raise UnclearError(None, None, f"not YAML: {type(error).__name__}") from None


def parse_json(text: str) -> Any:
    """Parse a JSON text, such as a variable of the environment.

    Raises:
        ValueError: the text is not JSON, or has a setting twice.
    """
    return json.loads(text, object_pairs_hook=_once, parse_float=lambda written: written_float(float(written), written))


def problem_of(error: yaml.YAMLError, *, hides_names: bool = False) -> str:
    """The error in a YAML text and its place, without the text: the line may have a password.

    Args:
        error: the error.
        hides_names: whether the names of a mapping are secret, too, as those of a file of tokens.
    """
    if isinstance(error, yaml.reader.ReaderError):
        return f"not YAML: {error.reason}, at character {error.position + 1}"
    problem = getattr(error, "problem", None) or "it cannot be parsed"
    if hides_names and isinstance(error, TwiceError):
        problem = f"the same name stands here and in line {error.first_line}"
    if not isinstance(error, UnclearError):  # Our own error quotes the name of a setting.
        problem = "not YAML: " + _without_text(problem)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return problem if mark is None else f"{problem}, in line {mark.line + 1}, column {mark.column + 1}"


def _without_text(problem: str) -> str:
    """The parser's problem without names of anchors, aliases and tags."""
    if r"character '\t'" in problem:
        return "a tab stands where it takes spaces"

    def shown(quote: re.Match[str]) -> str:
        inner = quote[1] or quote[2] or ""
        return quote[0] if len(inner) < 2 or inner in _TOKENS else "'…'"

    return _QUOTED.sub(shown, problem)


def written_float(number: float, text: str) -> float:
    """A number with its text, if Python would write it in another way."""
    return number if text == str(number) else WrittenFloat(number)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice!r} stands there twice")
    return dict(pairs)


def _unclear(problem: str, node: yaml.Node) -> UnclearError:
    return UnclearError(None, None, problem, node.start_mark)
