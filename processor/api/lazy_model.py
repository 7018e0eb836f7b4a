"""A settings model that is imported when it is read: a process that only merges, as on Spark, imports no pydantic."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pydantic import BaseModel


class _LazyModel:
    """A class attribute with a model of another module."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __get__(self, instance: object, owner: type) -> type[BaseModel]:
        model: type[BaseModel] = getattr(import_module(self._module), self._name)
        return model


def lazy_model(module: str, name: str) -> type[BaseModel]:
    """Return a class attribute whose value is a model of a module; the module is imported at the first read."""
    return cast("type[BaseModel]", _LazyModel(module, name))
