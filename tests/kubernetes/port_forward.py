"""Makes a port of a pod a port of this machine."""

from __future__ import annotations

import subprocess
import threading
from typing import Self

_START_TIMEOUT_S = 20.0
_PAUSE_S = 0.2


class PortForward:
    """`kubectl port-forward`, for the time of a `with` block, started again whenever it ends.

    It ends by itself if a connection through it breaks off.
    """

    def __init__(self, namespace: str, target: str, port: int) -> None:
        """Set the target, such as `pod/kafka-0`, and the port, which is the same on both sides."""
        self._command = ["kubectl", "-n", namespace, "port-forward", target, f"{port}:{port}"]
        self._is_over = threading.Event()
        self._is_ready = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="port-forward", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._is_ready.wait(_START_TIMEOUT_S):
            self.__exit__()
            raise TimeoutError(f"{' '.join(self._command)}: not ready within {_START_TIMEOUT_S:g} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            with subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as self._process:
                assert self._process.stdout is not None
                for line in self._process.stdout:  # All of them: kubectl stands still while its output waits.
                    if line.startswith("Forwarding from"):
                        self._is_ready.set()
            self._is_over.wait(_PAUSE_S)
