"""Finds the reason for which a client gets no connection to a broker.

librdkafka reports one error for all of them, "Broker transport failure", and the reason in its log only. `FaultLog`
collects the log lines of a client, `connection_faults` knows their meaning and the remedy, and `explain` looks at an
address itself, with sockets and TLS but without Kafka's protocol, where several reasons share a line.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import ssl
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from processor.kafka.background_calls import call_in_background
from processor.kafka.connection_faults import Fault, Kind, fault_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from confluent_kafka import KafkaError


STEP_S: Final = 3.0
"""Longest time for one step."""
_NAME_ERRORS: Final = frozenset((62, 64))  # OpenSSL's codes: another host name, another IP address.
_NO: Final = ("false", "0", "f")
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
        fault, result = _shake_hands(connection, address, kafka)
        return [*done, Step("TLS", address, result, fault)]


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
    resolve = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        entries = call_in_background("resolving a name", resolve).result(timeout_s)
    except TimeoutError:
        return f"the name server does not answer within {timeout_s:g} s"
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


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
    context = broker_context(kafka)
    if certificate := kafka.get("ssl.certificate.location"):
        password = kafka.get("ssl.key.password")
        with contextlib.suppress(ssl.SSLError):  # librdkafka reports a wrong one by itself.
            context.load_cert_chain(certificate, kafka.get("ssl.key.location"), lambda: str(password or ""))
    return context


def broker_context(kafka: Mapping[str, Any]) -> ssl.SSLContext:
    """A TLS context that checks a broker's certificate as librdkafka does, without one of our own.

    Raises:
        OSError: certificates or revocations cannot be read; an `ssl.SSLError` if they are none.
    """
    context = trusting_context(kafka.get("ssl.ca.location"), kafka.get("ssl.ca.pem"))
    if revoked := kafka.get("ssl.crl.location"):
        context.load_verify_locations(cafile=revoked)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if str(kafka.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if str(kafka.get("enable.ssl.certificate.verification", "true")).lower() in _NO:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def trusting_context(place: str | None, text: str | None) -> ssl.SSLContext:
    """A TLS context that trusts these authorities, or the system's.

    Args:
        place: a file or a directory, or `probe` for the system's, as `ssl.ca.location` has it.
        text: the authorities themselves, as `ssl.ca.pem` has them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if text:
        context.load_verify_locations(cadata=text)
    elif place and place != "probe":
        context.load_verify_locations(**{"capath" if Path(place).is_dir() else "cafile": place})
    else:
        context.load_default_certs()
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


_DEFAULT_PORT = 9092
_GLANCE_S = 1.0
"""Longest time for one step of an early look."""


class FaultLog:
    """The last fault of each address; a logger for one client. It is filled while the client is polled.

    The lines go on to the log at level DEBUG: the error of the command, or the line of an outage, has the reason.
    """

    def __init__(self, kafka: Mapping[str, Any], log: logging.Logger, *, awaits_names: bool = False) -> None:
        """Start without faults.

        Args:
            kafka: the properties of the client.
            log: receives the lines.
            awaits_names: whether a host without a name may get one, as when containers start in any order.
        """
        self._kafka = kafka
        self._log = log
        self._awaits_names = awaits_names
        self._faults: dict[str, Fault] = {}

    def listening(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """The properties of a client whose faults are collected here."""
        return {**properties, "logger": self, "error_cb": self._on_error}

    def log(self, _level: int, text: str, *arguments: object) -> None:
        """Log a line as `logging.Logger.log` does; librdkafka's arguments are its facility, the client, the message."""
        if len(arguments) == 3:
            self._add(str(arguments[2]))
        self._log.debug(text, *arguments)

    def _on_error(self, error: KafkaError) -> None:
        self._add(error.str())

    def _add(self, text: str) -> None:
        fault = fault_in(text)
        if fault is not None:
            self._keep(fault)

    def _keep(self, fault: Fault) -> None:
        before = self._faults.get(fault.address)
        # A router's refusal may come once only; later tries then get no answer.
        if fault.kind != "silent" or before is None or before.kind != "unreachable":
            self._faults[fault.address] = fault

    def clear(self) -> None:
        """Forget all faults, as a broker has answered. If its name does not resolve later, it will again."""
        self._faults.clear()
        self._awaits_names = True

    @property
    def ends_the_wait(self) -> bool:
        """True if waiting is of no use: every address of the settings has a fault that stays, or a wrong name."""
        gives_up = not self._awaits_names
        final = sum(fault.is_final or (gives_up and fault.is_wrong_name) for fault in self._faults.values())
        return final > 0 and final >= len(addresses_of(self._kafka))

    def look_closer(self) -> str:
        """Look at the addresses, so that faults that librdkafka does not log are known early; return the reasons."""
        faults = self.explained(timeout_s=_GLANCE_S)
        for fault in faults:
            self._keep(fault)
        return "; ".join(fault.found for fault in faults)

    def explained(self, *, timeout_s: float = STEP_S) -> list[Fault]:
        """The faults, with ambiguous ones resolved by a look at the address; takes up to `timeout_s` for each step."""
        faults = list(self._faults.values())
        if not faults:
            addresses = addresses_of(self._kafka)
            reached = [steps(address, self._kafka, timeout_s=timeout_s)[-1].fault for address in addresses]
            faults = [fault for fault in reached if fault is not None] or [Fault("mute", one) for one in addresses]
        return [explain(fault, self._kafka, timeout_s=timeout_s) for fault in faults]


def addresses_of(kafka: Mapping[str, Any]) -> list[str]:
    """The addresses of `bootstrap.servers`, each as `host:port`."""
    addresses = []
    for entry in str(kafka.get("bootstrap.servers", "")).split(","):
        address = entry.strip().rpartition("://")[2]
        if address:
            has_port = address.rpartition(":")[2].isdecimal() and not address.endswith("]")
            addresses.append(address if has_port else f"{address}:{_DEFAULT_PORT}")
    return addresses
