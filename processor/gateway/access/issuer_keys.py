"""The public keys of an issuer of tokens, which outlive its outage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import jwt
import structlog

log = structlog.stdlib.get_logger("sowstream.gateway")

FETCH_TIMEOUT_S: Final = 5.0
"""Longest wait for the issuer."""
FRESH_S: Final = 300.0
"""Keys that are older are fetched again, while tokens are verified with them."""
KEPT_S: Final = 86_400.0
"""Keys are used so long after the last answer of the issuer: a key that it has withdrawn meanwhile must end."""
PAUSE_S: Final = 5.0
"""Least time between two fetches: tokens with names of unknown keys ask for no more."""


class KeysUnavailable(Exception):
    """The issuer cannot be asked for a key now, so that nothing can be said about the token."""


class UnknownKey(Exception):
    """The issuer has no such key."""


class IssuerKeys:
    """The keys of one issuer by their names. Any thread; one fetch runs at a time, on a thread of its own."""

    def __init__(self, url: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without keys; `clock_s` is a clock that is never set back."""
        # Its caches are not used: they end with the first fetch that fails after their time.
        self._client = jwt.PyJWKClient(url, cache_keys=False, cache_jwk_set=False, timeout=FETCH_TIMEOUT_S)
        self._clock_s = clock_s
        self._changed = threading.Condition()
        self._keys: dict[str | None, Any] = {}
        self._answered_s: float | None = None
        self._asked_s: float | None = None
        self._is_fetching = False
        self._is_failing = False

    def find(self, name: str | None) -> Any:
        """The key of a name. Waits for the issuer only if the name is not known.

        Raises:
            UnknownKey: the issuer has none.
            KeysUnavailable: the issuer does not answer.
        """
        with self._changed:
            now_s = self._clock_s()
            age_s = None if self._answered_s is None else now_s - self._answered_s
            key = self._keys.get(name) if age_s is not None and age_s < KEPT_S else None
            if key is not None:
                if age_s is not None and age_s > FRESH_S:
                    self._begin_fetch(now_s)
                return key
            asks = self._begin_fetch(now_s)
            if asks:
                self._changed.wait_for(lambda: not self._is_fetching, timeout=FETCH_TIMEOUT_S * 2)
            if (key := self._keys.get(name)) is not None:
                return key
            if not asks or self._is_failing or self._is_fetching:
                raise KeysUnavailable  # Also of a key that the issuer may have published since it was asked.
            raise UnknownKey

    def _begin_fetch(self, now_s: float) -> bool:
        """Begin a fetch unless one was begun just now; returns whether one runs."""
        if not self._is_fetching and (self._asked_s is None or now_s - self._asked_s >= PAUSE_S):
            self._is_fetching, self._asked_s = True, now_s
            threading.Thread(target=self._fetch, name="issuer-keys", daemon=True).start()
        return self._is_fetching

    def _fetch(self) -> None:
        keys: dict[str | None, Any] | None = None
        try:
            keys = {key.key_id: key.key for key in self._client.get_signing_keys(refresh=True)}
        except Exception as error:  # noqa: BLE001 - An issuer may answer with anything; known keys go on.
            log.warning("the keys of the issuer cannot be fetched; known ones go on", error=type(error).__name__)
        with self._changed:
            self._is_fetching, self._is_failing = False, keys is None
            if keys is not None:
                self._keys, self._answered_s = keys, self._clock_s()
            elif self._answered_s is not None and self._clock_s() - self._answered_s >= KEPT_S:
                self._keys = {}
            self._changed.notify_all()
