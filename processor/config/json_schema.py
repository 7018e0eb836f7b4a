"""The JSON Schema of the settings: for completion and checks in an editor."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from typing import TYPE_CHECKING, Any, Final

from pydantic.json_schema import GenerateJsonSchema

from processor.config.config import Config
from processor.config.section import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEXT_OR_NUMBER: Final = {"type": ["string", "number", "boolean"]}
_EXPRESSIONS: Final = {
    "type": "object",
    "propertyNames": {"pattern": "^/"},
    "additionalProperties": {"type": "string"},
    "description": "By the path of each computed field its expression, in the language of filters.",
}


class _AsWritten(GenerateJsonSchema):
    """Describes values as people write them.

    A value that is converted before it is checked may be a text: an interval such as `5s`, a schema as a bare file, a
    step as a bare name. Kafka's properties may be numbers and booleans.
    """

    def function_before_schema(self, schema: Any) -> dict[str, Any]:
        """Describe such a value."""
        plain = super().function_before_schema(schema)
        if inspect.ismethod(schema["function"]["function"]):
            return plain  # Of a whole section, which has no other form.
        if plain.get("type") == "object" and plain.get("additionalProperties") == {"type": "string"}:
            return {**plain, "additionalProperties": _TEXT_OR_NUMBER}
        expressions = [_EXPRESSIONS] if "StepConfig" in json.dumps(plain) else []
        return {"anyOf": [plain, {"type": "string"}, *expressions]}


def schema() -> dict[str, Any]:
    """The JSON Schema of a settings file; the docstrings of the settings are its descriptions."""
    tree = Config.model_json_schema(schema_generator=_AsWritten)
    sections = {model.__name__: model for model in _subclasses(Section)}
    _describe(tree, Config)
    for name, definition in tree.get("$defs", {}).items():
        if name in sections:
            _describe(definition, sections[name])
    return {"$schema": GenerateJsonSchema.schema_dialect, **tree, "title": "sowstream.yaml"}


def schema_text() -> str:
    """The JSON Schema as an indented text."""
    return json.dumps(schema(), indent=2)


def _subclasses(model: type[Section]) -> Iterator[type[Section]]:
    for subclass in model.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _describe(definition: dict[str, Any], model: Any) -> None:
    """Add the docstrings under the fields of a section as descriptions; pydantic would read them at each start."""
    docstrings = dict(_docstrings(model))
    for name, field in model.model_fields.items():
        described = definition.get("properties", {}).get(field.alias or name)
        if described is not None and name in docstrings:
            described["description"] = " ".join(docstrings[name].split())


def _docstrings(model: type) -> Iterator[tuple[str, str]]:
    """Each field of a class, and of its bases that are sections, with the text under it."""
    for base in model.__bases__:
        if base.__module__.startswith("processor."):
            yield from _docstrings(base)
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield field.target.id, text.value
