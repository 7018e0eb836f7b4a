"""Runs `sowstream` in processes that are forked from one which has imported it: most of a command's start are imports.

They have the output, exit code and signals of the command that a user starts. A test of the start itself, of the
environment of Python or of an output that is read while the command runs starts a true process.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from pkgutil import iter_modules, walk_packages

import processor.builtin
import processor.cli
from processor.cli.main import main

COMMAND = "processor.cli.main"
_TIMEOUT_S = 150.0


class Forked:
    """A running command. It has the methods of `subprocess.Popen` that tests of workers use."""

    _fork = multiprocessing.get_context("forkserver")
    _fork.set_forkserver_preload(
        [
            *("processor.runtime.worker.worker", "processor.installation.settings_check"),
            *(module.name for module in iter_modules(processor.cli.__path__, "processor.cli.")),
            # Each of them would import what it needs first: plug-ins, the usual message type, the drawing of a help.
            *(module.name for module in walk_packages(processor.builtin.__path__, "processor.builtin.")),
            *("processor.codec.json", "processor.codec.frame", "typer.rich_utils", "rich.markdown"),
        ]
    )

    def __init__(
        self,
        words: list[str],
        output: Path,
        *,
        errors: Path | None = None,
        given: Path | None = None,
        directory: Path | None = None,
        module: str = COMMAND,
        environment: dict[str, str] | None = None,
    ) -> None:
        """Start `sowstream WORDS`.

        Args:
            words: the arguments.
            output: the file of its output.
            errors: the file of its error output; None: the same.
            given: the file of its input; None: there is none.
            directory: its working directory; None: that of this process.
            module: the module that it runs.
            environment: more variables of its environment; Python and its libraries have read theirs before.
        """
        self.args = ["sowstream", *words]
        output.touch()
        files = given or Path(os.devnull), output, errors
        variables = {**os.environ, **(environment or {})}
        self._process = self._fork.Process(
            target=_run_module, args=(module, words, variables, directory or Path.cwd(), files)
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None: it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code; None: it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, at most so many seconds; returns the exit code."""
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    *words: str,
    given: str = "",
    directory: Path | None = None,
    module: str = COMMAND,
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `sowstream WORDS` to its end, with an input.

    Raises:
        subprocess.TimeoutExpired: it did not end in two and a half minutes, and was killed.
    """
    with tempfile.TemporaryDirectory() as base:
        standard_input, output, errors = (Path(base) / name for name in ("input", "output", "errors"))
        standard_input.write_text(given, encoding="utf-8")
        process = Forked(
            [*words], output, errors=errors, given=standard_input,
            directory=directory, module=module, environment=environment,
        )  # fmt: skip
        try:
            code = process.wait(_TIMEOUT_S)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, code, output.read_text("utf-8"), errors.read_text("utf-8"))


def _run_module(
    module: str, words: list[str], environment: dict[str, str], directory: Path, files: tuple[Path, Path, Path | None]
) -> None:
    """Run a module, in the process that was forked for it."""
    given, output, errors = files
    for number, file, mode in ((0, given, "rb"), (1, output, "wb"), (2, errors, "wb")):
        if file is None:
            os.dup2(1, 2)
            continue
        with file.open(mode) as opened:
            os.dup2(opened.fileno(), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - It lives as long as the process.
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.argv = ["sowstream", *words]
    try:
        if module == COMMAND:  # Which is imported already.
            main()
        else:
            runpy.run_module(module, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # A process of multiprocessing ends without.
