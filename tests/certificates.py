"""Certificates for tests of TLS, of authorities, servers and clients, made by openssl; keys that sign tokens."""

from __future__ import annotations

import subprocess
from functools import cache
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric import rsa

if TYPE_CHECKING:
    from pathlib import Path


@cache
def signing_key(name: str) -> rsa.RSAPrivateKey:
    """The private key of this name, made when it is first asked for: it takes a tenth of a second."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Authority:
    """A certificate authority in a folder of its own: `ca.pem` is its certificate."""

    def __init__(self, folder: Path) -> None:
        """Make the authority."""
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self._openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test authority",
            "-keyout", "ca.key", "-out", "ca.pem",
        )  # fmt: skip

    @property
    def file(self) -> Path:
        """The certificate of the authority."""
        return self.folder / "ca.pem"

    def issue(self, name: str, alternative: str, *, days: int = 2, key: tuple[str, ...] = ("rsa:2048",)) -> Path:
        """Issue a certificate; returns its file, which begins with the key.

        Args:
            name: the name of the file and the common name.
            alternative: the names that it is valid for, such as `IP:127.0.0.1`.
            days: how long it is valid; negative: it has ended.
            key: the type of its key, as `openssl req -newkey` reads it.
        """
        (self.folder / "names").write_text(f"subjectAltName={alternative}")
        new = ["-newkey", *key, "-nodes", "-subj", f"/CN={name}"]
        self._openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
        self._openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-days", str(days), "-out", f"{name}.pem")
        both = self.folder / f"{name}.both.pem"
        both.write_text((self.folder / f"{name}.key").read_text() + (self.folder / f"{name}.pem").read_text())
        return both

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=self.folder)
