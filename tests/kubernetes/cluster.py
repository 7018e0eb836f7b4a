"""Runs `kubectl` and `helm` in one namespace of a cluster."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "sowstream"

Result = TypeVar("Result")


@dataclass(frozen=True)
class Cluster:
    """A namespace of the cluster that `KUBECONFIG` names."""

    namespace: str
    values: tuple[Path, ...]
    """The files with the values of its releases; later ones have priority."""
    patience_s: float = 300
    """Longest wait for one event."""

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """The output of a command of kubectl in the namespace.

        Raises:
            RuntimeError: the command has failed.
        """
        return _output(["kubectl", "-n", self.namespace, *arguments], text)

    def create(self) -> None:
        """Create the namespace, which enforces the Pod Security Standard `restricted`."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": self.namespace, "labels": labels}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        _output(["kubectl", "apply", "-f", "-"], json.dumps(manifest))

    def remove(self) -> None:
        """Remove the namespace with all that is in it."""
        _output(["kubectl", "delete", "namespace", self.namespace, "--timeout=3m"])

    def upgrade(self, release: str, *arguments: str) -> None:
        """Install or upgrade the release with `values`, without a wait for its pods unless `--wait` is an argument."""
        files = [word for file in self.values for word in ("-f", str(file))]
        self.helm("upgrade", "--install", release, str(CHART), "--timeout", "5m", *files, *arguments)

    def helm(self, *arguments: str) -> str:
        """The output of a command of Helm in the namespace.

        Raises:
            RuntimeError: the command has failed.
        """
        return _output(["helm", *arguments, "-n", self.namespace])

    def pods(self, selector: str) -> dict[str, str]:
        """The phase of each pod of a label selector, by name; pods that are being removed are left out."""
        items = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return {
            item["metadata"]["name"]: item["status"].get("phase", "")
            for item in items
            if "deletionTimestamp" not in item["metadata"]
        }

    def python(self, pod: str, program: str) -> Any:
        """The JSON that a program prints, which runs in a pod."""
        return json.loads(self.kubectl("exec", "-i", pod, "--", "python3", "-", text=program).splitlines()[-1])

    def wait_for(self, event: str, look: Callable[[], Result | None]) -> Result:
        """Look every second until there is a result; commands that fail are repeated.

        Raises:
            TimeoutError: it has not come in time.
        """
        end = time.monotonic() + self.patience_s
        last = ""
        while time.monotonic() < end:
            try:
                if result := look():
                    return result
            except RuntimeError as error:
                last = str(error)
            time.sleep(1)
        raise TimeoutError(f"{event}: not within {self.patience_s:.0f} s. {last}")


def _output(command: list[str], text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
    return done.stdout
