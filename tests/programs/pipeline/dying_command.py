"""A command of `sowstream-spark` that dies by SIGKILL as it begins a step: `dying_command STEP takeover orders …`."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from spark_integration.cli import run_command

if TYPE_CHECKING:
    from collections.abc import Callable


def main(step: str, command: str, *arguments: str) -> int:
    """Run a command that moves a merge, up to a step."""
    # The module's name in its package is that of the function in it.
    module = import_module(f"spark_integration.cli.{command}")
    inform: Callable[[str], None] = module.inform

    def informed(text: str) -> None:
        inform(text)
        if text.endswith(f": {step}"):
            os.kill(os.getpid(), signal.SIGKILL)

    module.inform = informed  # type: ignore[attr-defined]
    return run_command([command, *arguments])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
