"""The settings of kafka-python, derived from librdkafka's properties."""

import ssl
import subprocess

import pytest

from processor.errors import ConfigurationError
from processor.kafka.python_client import client_settings

KAFKA = {"bootstrap.servers": "one:9092, two:9093"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate and its key, as texts."""
    directory = tmp_path_factory.mktemp("tls")
    key, cert = directory / "key.pem", directory / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=settler"]
    subprocess.run([*words, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


def test_without_more_it_is_addresses_only():
    """Without further properties the settings are addresses only; spaces between them do not matter."""
    assert client_settings(KAFKA) == {
        "bootstrap_servers": ["one:9092", "two:9093"],
        "client_id": "sowstream",
        "security_protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_name_and_a_password_are_passed_on(name):
    """Name and password are passed on, for both spellings of the mechanism."""
    login = {name: "SCRAM-SHA-512", "sasl.username": "ada", "sasl.password": "secret"}
    chosen = client_settings(KAFKA | login | {"security.protocol": "sasl_plaintext"})
    assert (chosen["security_protocol"], chosen["sasl_mechanism"]) == ("SASL_PLAINTEXT", "SCRAM-SHA-512")
    assert (chosen["sasl_plain_username"], chosen["sasl_plain_password"]) == ("ada", "secret")
    assert "ssl_context" not in chosen


@pytest.mark.parametrize("mechanism", ["AWS_MSK_IAM", "GSSAPI", None])
def test_another_way_to_log_in_is_an_error(mechanism):
    """An unsupported login method is an error, and Kerberos, librdkafka's default, too."""
    given = {"security.protocol": "SASL_SSL"} | ({"sasl.mechanisms": mechanism} if mechanism else {})
    with pytest.raises(ConfigurationError, match=mechanism or "GSSAPI"):
        client_settings(KAFKA | given)


def test_certificates_come_from_files_or_from_the_settings(certificate):
    """Certificates, of authorities and our own, come from files or from the settings."""
    cert, key = certificate
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(cert)}
    files = client_settings(KAFKA | tls | {"ssl.certificate.location": str(cert), "ssl.key.location": str(key)})
    texts = {"ssl.ca.pem": cert.read_text(), "ssl.certificate.pem": cert.read_text(), "ssl.key.pem": key.read_text()}
    for chosen in (files, client_settings(KAFKA | {"security.protocol": "ssl"} | texts)):
        context = chosen["ssl_context"]
        assert [dict(part[0] for part in one["subject"])["commonName"] for one in context.get_ca_certs()] == ["settler"]
        assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


def test_checks_are_left_out_only_where_the_settings_say_so(certificate):
    """The check of the host's name, or of all certificates, is disabled only by the settings."""
    tls = KAFKA | {"security.protocol": "SSL", "ssl.ca.location": str(certificate[0])}
    no_name = client_settings(tls | {"ssl.endpoint.identification.algorithm": "none"})["ssl_context"]
    assert (no_name.check_hostname, no_name.verify_mode) == (False, ssl.CERT_REQUIRED)
    nothing = client_settings(tls | {"enable.ssl.certificate.verification": "false"})["ssl_context"]
    assert nothing.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize("given", [{"ssl.ca.location": "/nowhere"}, {"ssl.ca.pem": "no certificate"}])
def test_certificates_that_cannot_be_read_are_an_error(given):
    """A certificate that cannot be read is an error that names the section of the settings."""
    with pytest.raises(ConfigurationError, match="section `kafka`"):
        client_settings(KAFKA | {"security.protocol": "SSL"} | given)
