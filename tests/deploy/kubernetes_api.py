"""The part of Kubernetes that Spark's driver asks: an API of pods, which run as processes, for one role."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

ENTRY_POINT = Path(__file__).parents[2] / "deploy" / "spark" / "entrypoint.py"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class KubernetesApi:
    """Answers as an API server does, and runs each pod's container as a process of the image's entry point."""

    def __init__(
        self, rules: list[dict[str, Any]], directory: Path, environment: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """Create it without pods.

        Args:
            rules: those of a Role, of the empty API group.
            directory: of the logs of the containers.
            environment: makes the environment of a container of the variables in its pod.
        """
        self.pods: dict[str, dict[str, Any]] = {}
        """The pods that there are, by name."""
        self.created: list[dict[str, Any]] = []
        """All pods that were created through the API."""
        self.used: set[tuple[str, str]] = set()
        """Each resource and verb that was asked for with the right to it."""
        self.refused: set[tuple[str, str]] = set()
        """Each resource and verb that was asked for without."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        """The process of each container, by the name of its pod."""
        self._rights = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
        self._directory, self._environment = directory, environment
        self._events: list[dict[str, Any]] = []
        self.is_closing = threading.Event()
        """Set when the watches are to end."""

    def log(self, name: str) -> str:
        """The log of a container."""
        return (self._directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def is_allowed(self, resource: str, verb: str) -> bool:
        """Return whether the role has a right, and remember the question."""
        right = (resource, verb)
        (self.used if right in self._rights else self.refused).add(right)
        return right in self._rights

    def create(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Start the container of a new pod."""
        name = pod["metadata"]["name"]
        [container] = pod["spec"]["containers"]
        fields = {"status.podIP": "127.0.0.1", "metadata.name": name}
        variables = {
            each["name"]: each["value"] if "value" in each else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in container["env"]
            if "secretKeyRef" not in each.get("valueFrom", {})
        }
        with (self._directory / f"{name}.log").open("wb") as log:
            self.processes[name] = process = subprocess.Popen(
                [sys.executable, str(ENTRY_POINT), *container["args"]],
                env={"PATH": os.environ["PATH"]} | self._environment(variables),
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )
        self.created.append(pod)
        self.add(pod, "ADDED")
        threading.Thread(target=self._follow, args=(pod, process), daemon=True).start()
        return pod

    def _follow(self, pod: dict[str, Any], process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        self.add(pod, "MODIFIED")

    def add(self, pod: dict[str, Any], event: str) -> None:
        """Keep a pod, and send it to those who watch."""
        pod.setdefault("status", {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"})
        pod["metadata"].setdefault("uid", pod["metadata"]["name"])
        pod["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        pod["metadata"]["resourceVersion"] = str(len(self._events) + 1)
        self.pods[pod["metadata"]["name"]] = pod
        self._events.append(json.loads(json.dumps({"type": event, "object": pod})))

    def remove(self, names: list[str]) -> None:
        """End the containers of pods."""
        for name in names:
            if (process := self.processes.get(name)) is not None:
                process.terminate()
            pod = self.pods.pop(name)
            self._events.append(json.loads(json.dumps({"type": "DELETED", "object": pod})))

    def selected(self, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """The pods that the selectors of a request choose."""
        return [pod for pod in list(self.pods.values()) if _matches(pod, query)]

    def events(self, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """The events of these pods, until the end."""
        place = int(query.get("resourceVersion") or 0)
        while not self.is_closing.wait(0.05):
            events, place = self._events[place:], len(self._events)
            yield from (event for event in events if _matches(event["object"], query))


def _matches(pod: dict[str, Any], query: Mapping[str, str]) -> bool:
    """Return whether a pod has the labels and fields of a request: `name=value`, or `name in (value,value)`."""
    fields = {"metadata.name": pod["metadata"]["name"], "status.phase": pod["status"]["phase"]}
    values = pod["metadata"].get("labels", {}) | fields
    for selector in ("labelSelector", "fieldSelector"):
        for name, _, several, single in re.findall(
            r"([^,=! ]+)(=| in )(?:\(([^)]*)\)|([^,]*))", query.get(selector, "")
        ):
            if values.get(name) not in (several or single).split(","):
                return False
    return True


def _handler(api: KubernetesApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            parts = url.path.strip("/").split("/")
            if parts[:3] != ["api", "v1", "namespaces"] or len(parts) < 5:
                self._answer(404, {"kind": "Status", "apiVersion": "v1", "code": 404})
                return
            resource, name = parts[4], parts[5] if len(parts) > 5 else None
            verb = _verb(self.command, name, query)
            if not api.is_allowed(resource, verb):
                message = f"{resource} is forbidden: cannot {verb}"
                self._answer(403, {"kind": "Status", "apiVersion": "v1", "code": 403, "message": message})
            elif verb == "watch":
                self._watch(query)
            else:
                self._do(verb, name, query, body)

        def _do(self, verb: str, name: str | None, query: Mapping[str, str], body: Any) -> None:
            if verb == "create":
                self._answer(201, api.create(body))
            elif verb == "list":
                listed = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": str(len(api._events))}}
                self._answer(200, listed | {"items": api.selected(query)})
            elif verb == "deletecollection":
                api.remove([pod["metadata"]["name"] for pod in api.selected(query)])
                self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
            elif name not in api.pods:
                self._answer(404, {"kind": "Status", "apiVersion": "v1", "code": 404})
            else:
                pod = api.pods[name]
                if verb == "delete":
                    api.remove([name])
                self._answer(200, pod)

        def _watch(self, query: Mapping[str, str]) -> None:
            if "upgrade" in self.headers.get("Connection", "").lower():
                # The client goes on with plain HTTP.
                self._answer(503, {"kind": "Status", "apiVersion": "v1", "code": 503})
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for event in api.events(query):
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                pass

        def log_message(self, *_arguments: Any) -> None:
            pass

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 - the names that the server calls

    return Handler


def _verb(method: str, name: str | None, query: Mapping[str, str]) -> str:
    if method == "GET":
        return "watch" if query.get("watch") == "true" else "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return _VERBS[method]


@contextmanager
def kubernetes_api(
    rules: list[dict[str, Any]], directory: Path, environment: Callable[[dict[str, str]], dict[str, str]]
) -> Iterator[tuple[KubernetesApi, str]]:
    """An API and its address; its containers are ended."""
    api = KubernetesApi(rules, directory, environment)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(api))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield api, f"http://127.0.0.1:{server.server_port}"
    finally:
        api.is_closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
        for process in api.processes.values():
            process.kill()
            process.wait()
