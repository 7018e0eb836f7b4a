"""The bodies for which idempotency keys were used: another body under the same key is refused.

The workers' marks know which lines of a body were taken (merge.md, Sequence), and the name of a mark has the digest of
the body, so that no line of another body is ever taken for one of them. The file here lets a gateway say that a key was
used before. It is shared by the processes of a gateway and outlives them; gateways on other machines have their own.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

from processor.errors import DiskUnusable
from processor.gateway.sessions.requests import BadRequest

CHARACTERS_MAX: Final = 200
"""Longest key."""
KEPT_S: Final = 24 * 3600
"""A key is kept as long as the marks of its lines."""
_KEYS_MAX: Final = 1_000_000
_BUSY_TIMEOUT_S: Final = 5.0
_TIDY_EVERY: Final = 1_000
"""Keys that are noted between two removals of old ones."""


class IdempotencyKeys:
    """The keys of the last day with the digests of their bodies, in a file. One thread at a time."""

    def __init__(self, file: Path) -> None:
        """Begin without opening the file: most gateways get no keys.

        Args:
            file: the file, which is created with the first key.
        """
        self._file = file
        self._keys: sqlite3.Connection | None = None
        self._noted = 0

    def note(self, key: str, digest: str) -> None:
        """Note the use of a key.

        Args:
            key: the key, with its user and topic.
            digest: the digest of the request.

        Raises:
            BadRequest: `key_reused`: it was used for another request.
            DiskUnusable: the file cannot be read or written.
        """
        now_s = int(time.time())
        try:
            keys = self._opened()
            with keys:
                if self._noted % _TIDY_EVERY == 0:
                    keys.execute("DELETE FROM keys WHERE used_s < ?", (now_s - KEPT_S,))
                    keys.execute("DELETE FROM keys WHERE rowid <= (SELECT max(rowid) FROM keys) - ?", (_KEYS_MAX,))
                keys.execute("INSERT OR IGNORE INTO keys (key, digest, used_s) VALUES (?, ?, ?)", (key, digest, now_s))
                (known,) = keys.execute("SELECT digest FROM keys WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self.close()
            raise DiskUnusable(f"{self._file}: the idempotency keys cannot be kept: {error}") from None
        self._noted += 1
        if known != digest:
            raise BadRequest("key_reused", "this Idempotency-Key was used for another request; choose a new one")

    def close(self) -> None:
        """Close the file."""
        if self._keys is not None:
            self._keys.close()
            self._keys = None

    def _opened(self) -> sqlite3.Connection:
        if self._keys is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._keys = sqlite3.connect(self._file, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
            self._keys.execute("PRAGMA journal_mode = WAL")
            self._keys.execute("PRAGMA synchronous = NORMAL")
            self._keys.execute("CREATE TABLE IF NOT EXISTS keys (key TEXT UNIQUE, digest TEXT, used_s INTEGER)")
        return self._keys
