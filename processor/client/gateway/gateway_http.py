"""The questions that a client asks a gateway over HTTP; and the address and the time limits of its connections."""

from __future__ import annotations

import itertools
import random
import re
import time
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from processor.client.gateway.answers import Tokens
from processor.codec import exact
from processor.config.secrets import shown_address
from processor.errors import BrokerUnavailable, ConfigurationError, Stop

if TYPE_CHECKING:
    from processor.client.gateway.answers import Token
    from processor.record import Value

_REFUSED_STATUS: Final = (401, 403)
"""The statuses of a client that may not do what it asks for."""
_REDIRECTS: Final = range(300, 400)
_NOT_FOUND: Final = 404
_KEPT: Final = "/%:@!$&'()*+,;=~"
"""The characters that stay as they are in the path of an address."""


def refusal(address: str, status: int, location: str | None) -> Stop:
    """The error of a gateway that refuses a request.

    A redirect is one, too. The client does not follow it, as the other address would have its token.

    Args:
        address: the gateway's, fit for a message.
        status: the status of its answer.
        location: the header `Location` of its answer.
    """
    if status in _REDIRECTS and location is not None:
        return BrokerUnavailable(
            f"the gateway at {address} redirects to {shown_address(location)!r:.200}, and no token is sent there: "
            "connect to that address if it is the gateway's, or look which proxy answers"
        )
    kind = Stop if status in _REFUSED_STATUS else BrokerUnavailable
    return kind(f"the gateway at {address} refused the request with status {status}")


class LinkTimes(NamedTuple):
    """The limits of a connection, seconds."""

    backoff_s: float = 0.25
    """Longest wait before the second attempt of anything; each further one may be twice as long."""
    backoff_max_s: float = 15.0
    """Longest wait before any attempt."""
    open_s: float = 15.0
    """Longest attempt to connect, to get a token, and to log on, each."""
    first_s: float = 30.0
    """So long the first call waits for a gateway that does not answer."""
    silence_s: float = 15.0
    """Time between two pings, and longest wait for the answer to one: then the connection is lost."""
    answer_s: float = 60.0
    """Longest wait for the answer to a request; the gateway itself waits 30 s for a view."""
    publish_s: float = 300.0
    """So long a command with a number is sent again that the gateway does not take now."""

    def backoff(self, attempt: int) -> float:
        """A random wait before the next attempt, so that clients that lost one gateway spread in time."""
        return random.random() * min(self.backoff_max_s, self.backoff_s * 2.0 ** min(attempt, 30))  # noqa: S311


class GatewayAddress:
    """The address of a gateway; its path and query are kept, as behind a proxy."""

    def __init__(self, url: str) -> None:
        """Check it.

        Raises:
            ConfigurationError: it cannot be used.
        """
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https", "ws", "wss") and parts.hostname and parts.port != 0
        except ValueError:  # A bracket that is not closed, a port that is no number.
            is_address = False
        if not is_address:
            raise ConfigurationError(
                f"gateway: {shown_address(url)!r} is not an address; write http://HOST:PORT or https://HOST:PORT"
            )
        if "@" in parts.netloc:
            raise ConfigurationError(
                f"gateway: a user or a password is in the address of {shown_address(url)!r}; leave it out, and prove "
                "who the client is by token="
            )
        path, query = quote(parts.path, safe=_KEPT), quote(parts.query, safe=f"{_KEPT}?")
        self._parts = parts._replace(path=re.sub(r"(/v1/ws)?/*$", "", path), query=query)

    def of(self, path: str, scheme: str, query: str = "") -> str:
        """The address of a path, by `http` or `ws`, which are made secure as the gateway's own address is."""
        secure = "s" if self._parts.scheme in ("https", "wss") else ""
        query = "&".join(filter(None, (self._parts.query, query)))
        return urlunsplit((scheme + secure, self._parts.netloc, self._parts.path + path, query, ""))


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none: it becomes an HTTPError."""


class GatewayHttp:
    """Asks a gateway by HTTP; a question is repeated while the gateway is away."""

    def __init__(self, address: GatewayAddress, token: Token, times: LinkTimes) -> None:
        self._address = address
        self._tokens = Tokens(token, times.open_s)
        self._times = times

    def key_fields(self, topic: str) -> tuple[tuple[str, ...], bool]:
        """The JSON Pointers of a topic's key fields, none where keys are explicit, and whether its keys are of groups.

        Raises:
            ConfigurationError: there is no such topic for this client.
            BrokerUnavailable: the gateway does not answer.
            Stop: it refuses the client.
        """
        for one in self.topics():
            if one["topic"] == topic:
                return tuple(one["key"]), one.get("groups", False)  # An older gateway does not say it.
        raise ConfigurationError(f"there is no topic {topic!r} that this client may use")

    def topics(self) -> list[dict[str, Any]]:
        """The topics that this client may use, as `GET /v1/topics` answers. Errors as `key_fields`."""
        answer: dict[str, list[dict[str, Any]]] = self._read("/v1/topics") or {"topics": []}
        return answer["topics"]

    def record(self, topic: str, key: str, min_version: int) -> Value | None:
        """The fields of a record, in a version or a later one; None: it is gone. Errors as `key_fields`."""
        path = f"/v1/topics/{quote(topic, safe='')}/records/{quote(key, safe='')}"
        return self._read(path, f"min_version={min_version}")

    def _read(self, path: str, query: str = "") -> Value | None:
        """The answer to a request, which is repeated while the gateway is away; None: there is nothing there."""
        until_s = time.monotonic() + self._times.first_s
        for attempt in itertools.count():
            try:
                return self._answer(path, query)
            except BrokerUnavailable:
                wait_s = self._times.backoff(attempt)
                if time.monotonic() + wait_s > until_s:
                    raise
                time.sleep(wait_s)
        raise AssertionError

    def _answer(self, path: str, query: str) -> Value | None:
        address = self._address.of(path, "http", query)
        shown = shown_address(address)
        token = self._tokens.current()
        request = Request(address, headers={} if token is None else {"Authorization": f"Bearer {token}"})  # noqa: S310
        try:
            with build_opener(_NoRedirects).open(request, timeout=self._times.open_s) as answer:
                return exact.read(answer.read())
        except HTTPError as error:
            with error:
                if error.code == _NOT_FOUND:
                    return None
                raise refusal(shown, error.code, error.headers.get("Location")) from None
        except (OSError, HTTPException) as error:
            raise BrokerUnavailable(f"the gateway at {shown} does not answer: {error!r:.200}") from None
        except ValueError as error:
            # The type alone: a message may quote the token, where it has a line end.
            raise BrokerUnavailable(f"a question to the gateway at {shown} failed: {type(error).__name__}") from None
