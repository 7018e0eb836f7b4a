"""A token endpoint on the loopback address: the client-credentials grant of OAuth 2.0, with signed tokens."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from typing import TYPE_CHECKING, Self
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import RSAKey

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

AUDIENCE = "kafka"
"""The audience of the tokens, which the broker requires."""


class TokenEndpoint:
    """Issues a token to each client whose secret is `secret_of` its name."""

    def __init__(self, folder: Path) -> None:
        """Make the keys; the public one is in `keys_file`, for the broker.

        Args:
            folder: the folder for the file.
        """
        self.lifetime_s = 3600
        """How long a token is valid."""
        self.issued: list[str] = []
        """The clients that received tokens, in order."""
        self.refused = 0
        """The number of requests that failed while it was so."""
        self.is_refusing = False
        """True: the endpoint fails, as one whose database is away."""
        self.redirect: str | None = None
        """An address to which a request for a token is redirected."""
        self.authorizations: list[str] = []
        """The header `Authorization` of each request behind a redirect; it was sent to another address."""
        self._key = RSAKey.generate_key(2048, {"kid": "1", "alg": "RS256", "use": "sig"})
        self.keys_file = folder / "keys.json"
        self.keys_file.write_text(json.dumps({"keys": [self._key.as_dict(private=False)]}))
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """Answers requests for tokens."""

            def do_POST(self) -> None:
                """Issue a token, or refuse."""
                if endpoint.redirect is not None:
                    self._answer(302, {}, Location=endpoint.redirect)
                    return
                body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, answer = endpoint._answer(self.headers.get("Authorization", ""), body)
                self._answer(status, answer)

            def do_GET(self) -> None:
                """Refuse a redirected request."""
                endpoint.authorizations.append(self.headers.get("Authorization", ""))
                self._answer(401, {"error": "invalid_client"})

            def _answer(self, status: int, answer: dict[str, object], **headers: str) -> None:
                data = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_arguments: object) -> None:
                """Log nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self._server.server_port}/token"

    def write_key(self, folder: Path) -> Path:
        """Write the private key to a file, for one who signs tokens too."""
        file = folder / "key.json"
        file.write_text(json.dumps(self._key.as_dict(private=True)))
        return file

    def token(self, name: str, lifetime_s: float) -> str:
        """A token for a principal."""
        now = int(time.time())
        claims = {"sub": name, "aud": AUDIENCE, "iss": "tests", "iat": now, "exp": now + int(lifetime_s), "scope": "k"}
        return jwt.encode({"alg": "RS256", "kid": "1"}, claims, self._key)

    def _answer(self, authorization: str, body: dict[str, list[str]]) -> tuple[int, dict[str, object]]:
        if self.is_refusing:
            self.refused += 1
            return 503, {"error": "temporarily_unavailable"}
        if authorization.startswith("Basic "):
            name, _, secret = base64.b64decode(authorization[6:]).decode().partition(":")
        else:
            name, secret = body.get("client_id", [""])[0], body.get("client_secret", [""])[0]
        if secret != secret_of(name):
            return 401, {"error": "invalid_client"}
        self.issued.append(name)
        token = self.token(name, self.lifetime_s)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime_s}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def secret_of(name: str) -> str:
    """The secret of a principal: its password, and its secret at the token endpoint."""
    return f"canary-{name}"
