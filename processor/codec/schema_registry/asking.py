"""Asks slow questions on a thread of its own, so that the thread that needs the answer waits no longer than it may."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from processor.errors import Stop

_Question = TypeVar("_Question", bound=Hashable)


class Asking(Generic[_Question]):
    """Questions that wait for their answers, one asked after the other. Any number of threads.

    The thread ends when nothing is left to ask, and the process does not wait for it.
    """

    def __init__(self, ask: Callable[[_Question], object], name: str) -> None:
        """Ask nothing yet.

        Args:
            ask: asks one question, for as long as that takes, and keeps the answer; Stop: there was none.
            name: the thread's name.
        """
        self._ask = ask
        self._name = name
        self._lock = threading.Lock()
        self._asked: dict[_Question, threading.Event] = {}
        self._problems: dict[_Question, str] = {}
        self._has_thread = False

    def wait(self, question: _Question, seconds: float) -> bool:
        """Have a question asked, unless it is being asked already, and wait; whether that came to an end in time."""
        with self._lock:
            is_over = self._asked.get(question)
            if is_over is None:
                is_over = self._asked[question] = threading.Event()
            if not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return is_over.wait(seconds)

    def problem(self, question: _Question) -> str:
        """The reason for which the last try had no answer; empty if it had one, or was never asked."""
        with self._lock:
            return self._problems.get(question, "")

    def _run(self) -> None:
        while True:
            with self._lock:
                question = next(iter(self._asked), None)
                if question is None:
                    self._has_thread = False
                    return
            problem = ""
            try:
                self._ask(question)
            except Stop as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001 - nobody hears it here, and the question must come to an end
                problem = f"{type(error).__name__}: {error}"
            with self._lock:
                self._problems.pop(question, None)
                if problem:
                    self._problems = {question: problem}  # One partition asks at a time; no list grows here.
                is_over = self._asked.pop(question)
            is_over.set()
