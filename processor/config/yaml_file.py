"""Reads YAML in which every setting stands once."""

from __future__ import annotations

from typing import Any

import yaml


class _Once(yaml.SafeLoader):
    """The safe loader, for which a key that comes twice is an error: of two values YAML's own would drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build one mapping.

        Raises:
            yaml.constructor.ConstructorError: a key stands in it twice.
        """
        seen: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            # What `<<` brings in may be said anew: that is what it is for.
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            first = seen.setdefault((key.tag, key.value), key)
            if first is not key:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} stands here and in line {first.start_mark.line + 1}", key.start_mark
                )
        return super().construct_mapping(node, deep)


def parse(text: str) -> Any:
    """What a YAML text says.

    Raises:
        yaml.YAMLError: it is none, or says something twice.
    """
    return yaml.load(text, _Once)  # noqa: S506 - it is the safe loader
