"""A real MirrorMaker 2 with the settings of `deploy/mirrormaker.properties`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from processor.trial.broker.jars import class_path
from processor.trial.broker.java import find_java

if TYPE_CHECKING:
    from types import TracebackType

PROPERTIES: Final = Path(__file__).parents[3] / "deploy" / "mirrormaker.properties"
LOCK: Final = Path(__file__).with_name("mirror.lock")
"""The jars of MirrorMaker, by `python -m processor.trial.broker.relock`."""


class MirrorMaker:
    """Copies a family's topics from one cluster to another, from `with` to the end of its block."""

    def __init__(self, folder: Path, family: str, *, old: str, new: str) -> None:
        """Write its settings.

        Args:
            folder: an empty directory for settings and the log.
            family: the topic of the settings.
            old: the bootstrap address of the cluster to read.
            new: that of the cluster to write.
        """
        folder.mkdir()
        text = PROPERTIES.read_text(encoding="utf-8").replace("OLD:9092", old).replace("NEW:9092", new)
        text = text.replace(r"= orders\\.", rf"= {family}\\.")
        # Each cluster of the drill has one broker.
        text = re.sub(r"(replication\.factor) = 3", r"\1 = 1", text)
        self._file = folder / "mirrormaker.properties"
        self._file.write_text(text, encoding="utf-8")
        self._log = folder / "mirrormaker.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-4000:]

    def __enter__(self) -> Self:
        jars = os.pathsep.join((class_path(LOCK), class_path()))
        java = [str(find_java()), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", jars]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*java, "org.apache.kafka.connect.mirror.MirrorMaker", str(self._file)], stdout=log, stderr=log
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
