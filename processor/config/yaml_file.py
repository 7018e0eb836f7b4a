"""Reads YAML in which every setting stands once; errors say where, and do not show the text: it may hold secrets."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

_QUOTED: Final = re.compile(r"""'[^']{2,}'|"[^"]{2,}\"""")
"""What the parser quotes of the text: names of anchors, aliases and tags, which may be a password without quotes."""


class TwiceError(yaml.constructor.ConstructorError):
    """A setting stands twice in one section."""


class _Once(yaml.SafeLoader):
    """The safe loader, for which a key that comes twice is an error: of two values YAML's own would drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build one mapping.

        Raises:
            TwiceError: a key stands in it twice.
        """
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            # What `<<` brings in may be said anew: that is what it is for.
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            first = seen.setdefault((key.tag, key.value), key)
            if first is not key:
                raise TwiceError(
                    None, None, f"{key.value!r} stands here and in line {first.start_mark.line + 1}", key.start_mark
                )
        return super().construct_mapping(node, deep)


def parse(text: str) -> Any:
    """What a YAML text says.

    Raises:
        yaml.YAMLError: it is none, or says something twice.
    """
    return yaml.load(text, _Once)  # noqa: S506 - it is the safe loader


def problem_of(error: yaml.YAMLError) -> str:
    """What is wrong with a YAML text, and where, without the text: the line may be that of a password."""
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.reason}, at character {error.position + 1}"
    problem = getattr(error, "problem", None) or "it cannot be parsed"
    if not isinstance(error, TwiceError):  # Of ours it quotes the name of a setting.
        problem = _QUOTED.sub("'…'", problem)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return problem if mark is None else f"{problem}, in line {mark.line + 1}, column {mark.column + 1}"
