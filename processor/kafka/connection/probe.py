"""Looks at an address step by step: its name, the connection, TLS. No request of Kafka's protocol is sent."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from processor.kafka.connection.fault import Fault, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP_S: Final = 3.0
"""Longest time for one step."""
_NAME_ERRORS: Final = frozenset((62, 64))  # OpenSSL's codes: another host name, another IP address.
_DATE_ERRORS: Final = frozenset((9, 10))  # Not valid yet, not valid any more.


class Step(NamedTuple):
    """The result of one step."""

    name: Literal["resolve", "connect", "TLS"]
    """The step."""
    address: str
    """The address, as the settings have it."""
    found: str
    """The result, if the step succeeded."""
    fault: Fault | None = None
    """The reason for which it failed."""


def steps(address: str, kafka: Mapping[str, Any], *, timeout_s: float = STEP_S) -> list[Step]:
    """Resolve the name, connect, and shake hands if the protocol has TLS; the last step may have failed.

    Args:
        address: `host:port`.
        kafka: the properties of the client.
        timeout_s: longest time for each step.
    """
    host, port = _split(address)
    resolved = _resolve(host, port, timeout_s)
    if isinstance(resolved, str):
        return [Step("resolve", address, "", Fault("unknown_host", address, resolved))]
    done = [Step("resolve", address, ", ".join(resolved))]
    try:
        connection = socket.create_connection((host, port), timeout_s)
    except OSError as error:
        return [*done, Step("connect", address, "", _of_connect(address, error))]
    done.append(Step("connect", address, "connected"))
    with connection:
        if not _has_tls(kafka):
            return done
        fault, found = _shake_hands(connection, address, kafka)
        return [*done, Step("TLS", address, found, fault)]


def explain(fault: Fault, kafka: Mapping[str, Any], *, timeout_s: float = STEP_S) -> Fault:
    """The precise fault in place of one whose line has several reasons; takes up to `timeout_s` for each step."""
    if not fault.address:
        return fault
    if fault.kind == "untrusted":
        last = steps(fault.address, kafka, timeout_s=timeout_s)[-1]
        return fault._replace(detail="") if last.fault is None else last.fault
    if fault.kind in ("closed", "mute", "tls_to_plain"):
        if _speaks_http(fault.address, timeout_s):
            return Fault("http", fault.address)
        if fault.kind != "tls_to_plain" and not _has_tls(kafka) and _speaks_tls(fault.address, timeout_s):
            return Fault("plain_to_tls", fault.address)
        if fault.kind == "closed" and _has_tls(kafka):
            return steps(fault.address, kafka, timeout_s=timeout_s)[-1].fault or fault
    if fault.kind == "login_missing" and "SASL" in _protocol(kafka):
        return Fault("closed", fault.address)
    return fault


def _protocol(kafka: Mapping[str, Any]) -> str:
    return str(kafka.get("security.protocol", "plaintext")).upper()


def _has_tls(kafka: Mapping[str, Any]) -> bool:
    return _protocol(kafka).endswith("SSL")


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _resolve(host: str, port: int, timeout_s: float) -> list[str] | str:
    """The IP addresses of a name, or the reason why there are none; a slow resolver is not waited for."""
    result: list[list[str] | str] = []

    def resolve() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            result.append(str(getattr(error, "strerror", None) or error))
        else:
            result.append(list(dict.fromkeys(str(entry[4][0]) for entry in found)))

    thread = threading.Thread(target=resolve, name="resolving a name", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return result[0] if result else f"the name server does not answer within {timeout_s:g} s"


def _of_connect(address: str, error: OSError) -> Fault:
    if isinstance(error, ConnectionRefusedError):
        return Fault("refused", address)
    if isinstance(error, TimeoutError):
        return Fault("silent", address)
    return Fault("unreachable", address, error.strerror or str(error))


def _shake_hands(connection: socket.socket, address: str, kafka: Mapping[str, Any]) -> tuple[Fault | None, str]:
    """The fault of a TLS handshake with the certificates of the settings, or its result."""
    host, _ = _split(address)
    try:
        context = _context(kafka)
        with context.wrap_socket(connection, server_hostname=host) as secure:
            return None, f"{secure.version()}, the certificate is valid"
    except ssl.SSLCertVerificationError as error:
        kind: Kind = "untrusted"
        if error.verify_code in _NAME_ERRORS:
            kind = "wrong_name"
        elif error.verify_code in _DATE_ERRORS:
            kind = "expired"
        return Fault(kind, address, error.verify_message), ""
    except ssl.SSLError as error:
        kind = "tls_to_plain" if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE") else "closed"
        return Fault(kind, address), ""
    except TimeoutError:
        return Fault("mute", address), ""
    except OSError as error:
        # A file of the settings that cannot be read has a name, a connection has none.
        if error.filename is not None:
            return Fault("untrusted", address, f"{error.filename}: {error.strerror}"), ""
        return Fault("tls_to_plain", address), ""


def _context(kafka: Mapping[str, Any]) -> ssl.SSLContext:
    """A TLS context with the certificates of the settings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    place, text = kafka.get("ssl.ca.location"), kafka.get("ssl.ca.pem")
    if text:
        context.load_verify_locations(cadata=text)
    elif place and place != "probe":
        context.load_verify_locations(**{"capath" if Path(place).is_dir() else "cafile": place})
    else:
        context.load_default_certs()
    if str(kafka.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if str(kafka.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := kafka.get("ssl.certificate.location"):
        password = kafka.get("ssl.key.password")
        with contextlib.suppress(ssl.SSLError):  # librdkafka reports a wrong one by itself.
            context.load_cert_chain(certificate, kafka.get("ssl.key.location"), lambda: str(password or ""))
    return context


def _speaks_tls(address: str, timeout_s: float) -> bool:
    """Return whether a TLS handshake succeeds, with any certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    host, port = _split(address)
    try:
        with socket.create_connection((host, port), timeout_s) as connection, context.wrap_socket(connection):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # It asks for a client's certificate.
    except OSError:
        return False


def _speaks_http(address: str, timeout_s: float) -> bool:
    """Return whether an HTTP request gets an HTTP response."""
    host, port = _split(address)
    request = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        request.request("GET", "/")
        request.getresponse()
    except http.client.HTTPException:
        return False
    except OSError:
        return False
    else:
        return True
    finally:
        request.close()
