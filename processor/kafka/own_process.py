"""Keeps clients in the process that created them: neither their threads nor their connections survive a fork.

In a forked process a wait for them would never end, a request would be written into a connection of the parent, and
librdkafka and RocksDB would wait for their threads when their objects are freed. So the objects refuse every call
there, closing them does nothing, and they are never freed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from concurrent.futures import Future
from typing import Final, NoReturn, TypeVar
from weakref import WeakSet

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from processor.errors import SowstreamError

_ResultT = TypeVar("_ResultT")


class OfOneProcess:
    """An object that works in the process that created it, and in no other one."""

    def __init__(self, noun: str) -> None:
        """Note the process; `noun` is the name of the object in errors, such as "client"."""
        self._noun = noun
        self._process_id = os.getpid()
        _objects.add(self)

    @property
    def is_inherited(self) -> bool:
        """Return whether this process was forked from the one that created the object."""
        return os.getpid() != self._process_id

    def refuse_inherited(self) -> None:
        """Refuse a call in a forked process; errors as the function."""
        refuse_inherited(self._noun, self._process_id)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {self._noun} cannot be pickled, as its threads and connections belong to one process: create a Client "
            "in each process"
        )


class AckFuture(Future[_ResultT]):
    """A future whose result comes to the process that sent the command: a fork of it would wait without end."""

    def __init__(self) -> None:
        super().__init__()
        self._process_id = os.getpid()

    def result(self, timeout: float | None = None) -> _ResultT:
        """As that of `Future`, in the process that sent the command."""
        refuse_inherited("future", self._process_id)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As that of `Future`, in the process that sent the command."""
        refuse_inherited("future", self._process_id)
        return super().exception(timeout)


def refuse_inherited(noun: str, process_id: int) -> None:
    """Refuse a call of an object in a fork of its process.

    Args:
        noun: the name of the object in the error, such as "client".
        process_id: the process that created it.

    Raises:
        SowstreamError: this is another process.
    """
    if os.getpid() != process_id:
        raise SowstreamError(
            f"this {noun} belongs to process {process_id}, of which process {os.getpid()} is a fork: its threads and "
            "connections do not exist here. Create a Client in each process, after the fork"
        )


_objects: Final[WeakSet[OfOneProcess]] = WeakSet()


def _outlive_parents_objects() -> None:
    """Make a forked process independent of the threads of its parent: its objects and clients are never freed.

    A client of librdkafka would wait for threads that do not exist; so would one that is garbage already.
    """
    kinds = (Producer, Consumer, AdminClient)
    clients = [each for each in gc.get_objects() if issubclass(type(each), kinds)]
    for each in (*_objects, *clients):  # With all that they refer to, such as RocksDB's databases.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))  # A reference that is never given back.
    if "rocksdict" in sys.modules:
        # At the end of a process RocksDB joins its threads. `_exit`, called first with the exit status, prevents that.
        libc = ctypes.CDLL(None)
        if hasattr(libc, "on_exit"):  # Of glibc.
            libc.on_exit(libc._exit, None)


if hasattr(os, "register_at_fork"):  # Not on Windows, which has no fork.
    os.register_at_fork(after_in_child=_outlive_parents_objects)
