"""Asks the API server through `kubectl proxy`, and the pods' ports through the API server."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Self


class Api:
    """The API server, for one namespace."""

    def __init__(self, namespace: str) -> None:
        """Start the proxy on a free port of the loopback address."""
        self._namespace = namespace
        self._proxy = subprocess.Popen(["kubectl", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True)
        assert self._proxy.stdout is not None
        line = self._proxy.stdout.readline()  # Starting to serve on 127.0.0.1:PORT
        self._url = f"http://{line.split()[-1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.terminate()
        self._proxy.communicate()

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        """The pods of a label selector, as Kubernetes has them."""
        query = urllib.parse.urlencode({"labelSelector": selector})
        return list(json.loads(self._get(f"pods?{query}", 10))["items"])

    def pod(self, name: str) -> dict[str, Any]:
        """One pod."""
        return dict(json.loads(self._get(f"pods/{name}", 10)))

    def page(self, pod: str, port: int, path: str, *, timeout_s: float = 2, **query: Any) -> str:
        """A page that a pod serves.

        Raises:
            OSError: it does not, or with an error, which is an `HTTPError`.
        """
        return self._get(f"pods/{pod}:{port}/proxy/{path}?{urllib.parse.urlencode(query)}", timeout_s)

    def evict(self, pod: str) -> int:
        """Ask for the eviction of a pod, as a drain does; returns the HTTP status: 429 means not now."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        request = urllib.request.Request(
            self._address(f"pods/{pod}/eviction"), json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def _address(self, path: str) -> str:
        return f"{self._url}/api/v1/namespaces/{self._namespace}/{path}"

    def _get(self, path: str, timeout_s: float) -> str:
        try:
            with urllib.request.urlopen(self._address(path), timeout=timeout_s) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            error.msg = f"{error.msg}: {error.read().decode(errors='replace')[-2000:]}"
            error.close()
            raise
        except http.client.HTTPException as error:  # The proxy broke off its answer.
            raise ConnectionError(str(error)) from error


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
