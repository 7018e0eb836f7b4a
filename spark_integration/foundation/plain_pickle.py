"""Reads plain values that were pickled into Spark's state: a damaged or forged state runs no code."""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

from processor.errors import Stop


def load_plain(data: bytes, noun: str) -> Any:
    """Read a pickle of dicts, lists, tuples, texts, bytes and numbers.

    Args:
        data: the pickle.
        noun: its place in the state, for the error.

    Raises:
        Stop: it has an object of any class, or is no pickle.
    """
    try:
        return _PlainUnpickler(data, noun).load()
    except Stop:
        raise
    except Exception as error:  # noqa: BLE001 - pickle answers bad bytes with any error
        raise Stop(f"Spark's state is damaged: {noun} cannot be read: {type(error).__name__}: {error}") from None


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler without classes."""

    def __init__(self, data: bytes, noun: str) -> None:
        super().__init__(io.BytesIO(data))
        self._noun = noun

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse a class."""
        raise Stop(f"Spark's state is damaged: {self._noun} has an object of {module}.{name}")
