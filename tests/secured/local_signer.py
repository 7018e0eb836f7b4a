"""A SASL callback that signs its tokens itself, as the plug-in of a cloud's login service does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from joserfc import jwt
from joserfc.jwk import RSAKey

from processor.kafka.tokens import GROUP
from tests.secured.token_endpoint import AUDIENCE

if TYPE_CHECKING:
    from collections.abc import Mapping

LIFETIME_S = 12
"""How long a token is valid."""


def install(site: Path) -> None:
    """Write the files of an installed package with this plug-in."""
    info = site / "local_signer-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: local_signer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nlocal_signer = {__name__}:sign\n")


def properties(key: Path, name: str) -> Mapping[str, str]:
    """The properties of a client of this plug-in, besides the address and TLS."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.callback": "local_signer",
        "sasl.oauthbearer.config": f"{name} {key}",
    }


def sign(config: str) -> tuple[str, float]:
    """A token for the principal of the text, signed with the key of the file after it; each is noted in a file."""
    name, _, path = config.partition(" ")
    key = RSAKey.import_key(json.loads(Path(path).read_text()))
    now_s = int(time.time())
    claims = {"sub": name, "aud": AUDIENCE, "iss": "tests", "iat": now_s, "exp": now_s + LIFETIME_S, "scope": "k"}
    with Path(f"{path}.{name}").open("a") as signed:
        signed.write("signed\n")
    return jwt.encode({"alg": "RS256", "kid": "1"}, claims, key), now_s + LIFETIME_S


def count(key: Path, name: str) -> int:
    """How many tokens a principal has received."""
    file = Path(f"{key}.{name}")
    return len(file.read_text().splitlines()) if file.exists() else 0
