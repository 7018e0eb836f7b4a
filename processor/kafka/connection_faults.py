"""The reasons for which a broker cannot be reached, each with a sentence and its remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from processor.errors import BrokerUnavailable, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from processor.errors import Stop

Kind: TypeAlias = Literal[
    "unknown_host",
    "refused",
    "unreachable",
    "silent",
    "mute",
    "closed",
    "http",
    "plain_to_tls",
    "tls_to_plain",
    "untrusted",
    "wrong_name",
    "expired",
    "client_certificate",
    "login_missing",
    "login_unwanted",
    "mechanism",
    "password",
    "no_token",
]
"""The name of a reason."""


class _Meaning(NamedTuple):
    """One reason."""

    found: str
    """The sentence after the address; `{detail}` is librdkafka's or Python's own text."""
    to_do: str
    """The remedy."""
    is_final: bool = True
    """True if waiting does not help: the settings or the broker must change first."""


_CHECK_ADDRESS: Final = "correct kafka.bootstrap.servers (or --bootstrap)"
_MEANINGS: Final[Mapping[Kind, _Meaning]] = {
    "unknown_host": _Meaning("no host has this name{detail}", _CHECK_ADDRESS, is_final=False),
    "refused": _Meaning(
        "nothing listens on this port (connection refused)",
        f"start Kafka (`sowstream broker start`), or {_CHECK_ADDRESS}",
        is_final=False,
    ),
    "unreachable": _Meaning("the host cannot be reached{detail}", f"check the network, or {_CHECK_ADDRESS}", False),
    "silent": _Meaning(
        "no connection within the time limit: the packets get no answer",
        f"open the firewall, or {_CHECK_ADDRESS}",
        is_final=False,
    ),
    "mute": _Meaning(
        "accepts connections, and does not answer as a Kafka broker does",
        f"check that Kafka has this port and is not overloaded, or {_CHECK_ADDRESS}",
        is_final=False,
    ),
    "closed": _Meaning(
        "closes the connection at Kafka's first request",
        "check that kafka.security.protocol is that of the listener, and that the broker is Kafka 1.0 or newer",
        is_final=False,
    ),
    "http": _Meaning("an HTTP server answers there, and not Kafka", f"name Kafka's own port: {_CHECK_ADDRESS}"),
    "plain_to_tls": _Meaning(
        "the port requires TLS, and kafka.security.protocol has none{detail}",
        "set kafka.security.protocol to SSL, or to SASL_SSL with a login, and kafka.ssl.ca.location",
    ),
    "tls_to_plain": _Meaning(
        "the port has no TLS, and kafka.security.protocol requires it{detail}",
        "name the port of the TLS listener, or set kafka.security.protocol to PLAINTEXT, or to SASL_PLAINTEXT with a "
        "login",
    ),
    "untrusted": _Meaning(
        "the broker's certificate comes from an authority that is not trusted here{detail}",
        "set kafka.ssl.ca.location to the file with the certificate of that authority",
    ),
    "wrong_name": _Meaning(
        "the broker's certificate is for another name{detail}",
        "use an address with a name of the certificate, or have one issued for this name",
    ),
    "expired": _Meaning(
        "the broker's certificate is not valid today{detail}", "renew it on the broker, or set this machine's clock"
    ),
    "client_certificate": _Meaning(
        "the broker does not accept the client's certificate, or received none{detail}",
        "set kafka.ssl.certificate.location and kafka.ssl.key.location to one that the broker trusts",
    ),
    "login_missing": _Meaning(
        "the broker closes the connection after the first request, as one that requires a login does",
        "set kafka.security.protocol to SASL_PLAINTEXT or SASL_SSL, and the login: kafka.sasl.*",
        is_final=False,
    ),
    "login_unwanted": _Meaning(
        "the port has no login, and kafka.security.protocol requires one",
        "name the port of the listener with logins, or set kafka.security.protocol to PLAINTEXT or SSL",
    ),
    "mechanism": _Meaning(
        "the broker does not have the login mechanism of kafka.sasl.mechanism{detail}",
        "set kafka.sasl.mechanism to one that it has",
    ),
    "password": _Meaning(
        "the broker refuses the login{detail}",
        "check kafka.sasl.username, kafka.sasl.password and kafka.sasl.mechanism",
    ),
    "no_token": _Meaning(
        "no login token was issued{detail}",
        "check kafka.sasl.oauthbearer.*: the client's id, its secret, and the endpoint",
    ),
}

_PATTERNS: Final[Sequence[tuple[str, Kind]]] = (
    (r"Failed to resolve '[^']*': (?P<detail>.+)", "unknown_host"),
    (r"Connect to \S+ failed: Connection refused", "refused"),
    (r"Connect to \S+ failed: (?P<detail>.+)", "unreachable"),
    (r"Connection setup timed out in state CONNECT\b", "silent"),
    (r"setup timed out|ApiVersionRequest failed: Local: Timed out", "mute"),
    # The first bytes of an HTTP response, read as the length of a Kafka response.
    (r"Invalid response size 1213486160\b", "http"),
    (r"wrong version number|connecting to a PLAINTEXT broker listener", "tls_to_plain"),
    (r"certificate verify failed", "untrusted"),
    (
        r"alert (?:bad|unknown|certificate|unsupported)[^:]*|alert number (?:42|43|44|45|46|48|116)",
        "client_certificate",
    ),
    (r"Unsupported SASL mechanism: broker's (?P<detail>supported mechanisms: .+)", "mechanism"),
    (r"not valid in (?:the )?current SASL state|ILLEGAL_SASL_STATE", "login_unwanted"),
    (r"[Ff]ailed to (?:retrieve|acquire)\b.*?\btoken(?P<detail>.+)", "no_token"),
    (r"SASL [^:]*?authentication error: (?P<detail>.+)|SASL authentication fail(?P<other>.+)", "password"),
    (r"might be caused by incorrect security\.protocol|in state APIVERSION_QUERY", "closed"),
    # At once after the connection; one that breaks later is a broker that stops.
    (r"Disconnected\b.*after \d{1,3}ms in state (?:UP|UPDATE)\b", "login_missing"),
)
_LINES: Final = [(re.compile(pattern, re.DOTALL), kind) for pattern, kind in _PATTERNS]
_TO_DO: Final = ". To do: "
_STATE: Final = re.compile(r" \(after \d+ms in state [^)]*\)")
_PLACE: Final = re.compile(r"^(?:\[thrd:.*?\]: )?(?:\w+://)?(?P<address>[^\s/]+)/[\w-]+: ")


class Fault(NamedTuple):
    """One reason for which an address cannot be used."""

    kind: Kind
    """The name of the reason."""
    address: str
    """`host:port`; empty if it is not known."""
    detail: str = ""
    """The underlying text, such as the operating system's."""

    @property
    def found(self) -> str:
        """The state, as a sentence that begins with the address."""
        detail = f" ({self.detail.rstrip('.')})" if self.detail else ""
        return f"{self.address or 'Kafka'}: {_MEANINGS[self.kind].found.format(detail=detail)}"

    @property
    def to_do(self) -> str:
        """The remedy."""
        return _MEANINGS[self.kind].to_do

    @property
    def is_final(self) -> bool:
        """True if waiting does not help."""
        return _MEANINGS[self.kind].is_final

    @property
    def is_wrong_name(self) -> bool:
        """True if the resolver knows that no host has the name; False if the resolver itself does not answer."""
        return self.kind == "unknown_host" and not re.search("temporary|try again", self.detail, re.IGNORECASE)


def fault_in(text: str) -> Fault | None:
    """The reason in a line of librdkafka's log, or in the text of an error; None if it has none that is known."""
    place = _PLACE.match(text)
    for pattern, kind in _LINES:
        if (match := pattern.search(text)) is not None:
            parts = [part for part in match.groupdict().values() if part]
            detail = _STATE.sub("", parts[0]).strip(" .:") if parts else ""
            return Fault(kind, place["address"] if place else "", detail)
    return None


def error_of(faults: Sequence[Fault], doing: str) -> Stop:
    """The error of an action that no broker answered, for known reasons; the final ones come first.

    Args:
        faults: at least one.
        doing: the action, such as "looking at the cluster at HOST:PORT".
    """
    sorted_faults = sorted(faults, key=lambda fault: not fault.is_final)
    remedies = list(dict.fromkeys(fault.to_do for fault in sorted_faults))
    # The action often ends with the only address.
    reasons = "; ".join(fault.found for fault in sorted_faults)
    if doing.endswith(f" {sorted_faults[0].address}"):
        reasons = reasons.removeprefix(f"{sorted_faults[0].address}: ")
    text = f"{doing}: {reasons}{_TO_DO}{'; or '.join(remedies)}"
    return ConfigurationError(text) if sorted_faults[0].is_final else BrokerUnavailable(text)


def parts_of(error: Stop) -> tuple[str, str]:
    """The state and the remedy in an error that `error_of` made; the remedy of another error is empty."""
    found, _, to_do = str(error).partition(_TO_DO)
    return found, to_do
