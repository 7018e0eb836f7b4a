"""Converts librdkafka's properties to the settings of kafka-python, a second Kafka client.

librdkafka has no calls to inspect transactions (KIP-664: DescribeProducers, ListTransactions, DescribeTransactions,
WriteTxnMarkers), and none for share groups. kafka-python has; queues and `sowstream transactions` use it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from processor.errors import BrokerUnavailable, ConfigurationError
from processor.kafka.connection_probe import addresses_of, broker_context
from processor.kafka.tokens import token_source

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


def client_settings(kafka: Mapping[str, str]) -> dict[str, Any]:
    """The keyword arguments of kafka-python's clients.

    Args:
        kafka: librdkafka properties: the addresses of Kafka, and our credentials.

    Raises:
        ConfigurationError: the login method is not supported here, or certificates cannot be read.
    """
    protocol = kafka.get("security.protocol", "plaintext").upper()
    settings: dict[str, Any] = {
        "bootstrap_servers": addresses_of(kafka) or ["localhost:9092"],
        "client_id": kafka.get("client.id", "sowstream"),
        "security_protocol": protocol,
    }
    if protocol.endswith("SSL"):
        settings["ssl_context"] = _tls(kafka)
    if protocol.startswith("SASL"):
        settings |= _login(kafka)
    return settings


def _login(kafka: Mapping[str, str]) -> dict[str, Any]:
    mechanism = (kafka.get("sasl.mechanisms") or kafka.get("sasl.mechanism") or "GSSAPI").upper()
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(
            f"queues and `sowstream transactions` log in to Kafka with {', '.join(_MECHANISMS)} or a certificate, not "
            f"with {mechanism}; run it with settings (-c FILE) whose `kafka` section has a user of one of these"
        )
    if mechanism == "OAUTHBEARER":
        return {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": _token_provider(kafka)}
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": kafka.get("sasl.username"),
        "sasl_plain_password": kafka.get("sasl.password"),
    }


def _token_provider(kafka: Mapping[str, str]) -> object:
    """Issues tokens to kafka-python."""
    from kafka.errors import KafkaConnectionError  # noqa: PLC0415 - an extra
    from kafka.net.sasl.oauth import AbstractTokenProvider  # noqa: PLC0415 - an extra

    source = token_source(kafka)

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        """Has a token for each new connection."""

        def token(self) -> str:
            """A valid token; without an endpoint the connection fails, and is tried again."""
            try:
                return source().text
            except BrokerUnavailable as error:
                raise KafkaConnectionError(str(error)) from error

        def extensions(self) -> dict[str, str]:
            """Its SASL extensions."""
            return dict(source().extensions)

    return Provider()


def _tls(kafka: Mapping[str, str]) -> ssl.SSLContext:
    """The TLS settings, as in librdkafka."""
    try:
        context = broker_context(kafka)
        _show_certificate(context, kafka)
    except OSError as error:
        raise ConfigurationError(f"the section `kafka` of the settings: its certificates: {error}") from error
    return context


def _show_certificate(context: ssl.SSLContext, kafka: Mapping[str, str]) -> None:
    """Present our certificate, if brokers ask for one."""
    password = kafka.get("ssl.key.password")
    if "ssl.keystore.location" in kafka:
        raise ConfigurationError(
            "queues and `sowstream transactions` read no ssl.keystore.location; name ssl.certificate.location and "
            "ssl.key.location in its place"
        )
    if "ssl.certificate.location" in kafka:
        context.load_cert_chain(kafka["ssl.certificate.location"], kafka.get("ssl.key.location"), password)
    elif "ssl.certificate.pem" in kafka:
        # Python reads certificates from files only; this one is deleted when they are read, and only we can read it.
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "client.pem"
            file.touch(0o600)
            file.write_text(f"{kafka['ssl.certificate.pem']}\n{kafka.get('ssl.key.pem', '')}\n", encoding="utf-8")
            context.load_cert_chain(file, None, password)
