"""Keeps librdkafka's clients alive in a forked process: freed there, each would wait for threads that do not exist."""

from __future__ import annotations

import ctypes
import gc
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

if TYPE_CHECKING:
    from collections.abc import Iterable


def keep_for_ever(objects: Iterable[object]) -> None:
    """Never free these objects, nor any client of librdkafka, also one that is garbage already.

    Args:
        objects: objects of the parent process, with all that they refer to, such as RocksDB's databases.
    """
    kinds = (Producer, Consumer, AdminClient)
    clients = [each for each in gc.get_objects() if issubclass(type(each), kinds)]
    for each in (*objects, *clients):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))  # A reference that is never given back.
