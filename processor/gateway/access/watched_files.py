"""Files of settings that are read again when they change: tokens, keys, entitlements, the certificate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import structlog

from processor.errors import ConfigurationError

log = structlog.stdlib.get_logger("sowstream.gateway")

_Stamp: TypeAlias = tuple[int, int, int] | None
"""When a file was written, nanoseconds since the epoch, its size in bytes, and its inode; None: there is none."""


class WatchedFiles:
    """Files that are read together, and read again when one of them has changed."""

    def __init__(self, name: str, paths: list[Path], load: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._paths = paths
        self._load = load
        self._stamps = [_stamp(path) for path in paths]
        self._error: str | None = None

    async def read_changed(self) -> bool:
        """Read the files again if one has changed; return whether they count now.

        Files that cannot be used are tried again, as they may have been read while they were written, and logged once.
        """
        stamps = [_stamp(path) for path in self._paths]
        if stamps == self._stamps:
            self._error = None
            return False
        try:
            await self._load()
        except Exception as error:  # noqa: BLE001 - Whatever it is, the other files go on.
            # Of an error that nobody foresaw the type alone: its text may have a token.
            text = str(error) if isinstance(error, ConfigurationError) else f"{self._name}: {type(error).__name__}"
            if self._error != text:
                self._error = text
                log.error("a changed file cannot be used; the former one counts", error=text)
            return False
        self._stamps, self._error = stamps, None
        log.info("a file of the gateway was read again", file=self._name)
        return True


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: the path has a NUL.
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
