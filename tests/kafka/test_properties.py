"""The properties of each kind of client, librdkafka's and the Python one's."""

import logging
import ssl
import subprocess

import pytest
from confluent_kafka import Consumer

from processor.errors import ConfigurationError
from processor.kafka import properties
from processor.kafka.properties import RepeatedLines
from processor.kafka.python_client import client_settings


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        """The time it is set to."""
        return self.now_s


def line(text: str) -> logging.LogRecord:
    """A line as librdkafka logs it."""
    return logging.LogRecord("sowstream.librdkafka", logging.ERROR, __file__, 1, "%s", (text,), None)


def test_a_line_that_comes_again_is_told_once_in_a_while_with_the_number_kept_back():
    """A repeated line passes once in a while with the number of repetitions; durations do not make it another line."""
    clock = Clock()
    repeats = RepeatedLines(10.0, clock)
    refused = "broker 1: Connection refused (after %dms in state CONNECT)"
    assert [repeats.filter(line(refused % ms)) for ms in range(4)] == [True, False, False, False]
    assert repeats.filter(line("broker 2: Connection refused (after 0ms in state CONNECT)"))
    clock.now_s = 10.0
    again = line(refused % 7)
    assert repeats.filter(again)
    assert again.getMessage() == f"{refused % 7} [3 more since the last such line]"
    clock.now_s = 20.0
    last = line(refused % 7)
    assert repeats.filter(last)
    assert last.getMessage() == refused % 7


KAFKA = {"bootstrap.servers": "nowhere:1"}


def member(more=None, **keywords):
    """The properties of a group's member."""
    return properties.group_member(KAFKA | (more or {}), **{"group": "g", "session_timeout_s": 8.0} | keywords)


def test_the_classic_protocol_has_a_session_and_an_assignor():
    """The classic protocol gets a session timeout and an assignor that stops only the moving partitions."""
    chosen = member()
    assert (chosen["session.timeout.ms"], chosen["heartbeat.interval.ms"]) == ("8000", "1000")
    assert chosen["partition.assignment.strategy"] == "cooperative-sticky"
    assert member(session_timeout_s=2.0)["heartbeat.interval.ms"] == "500", "a lost heartbeat loses no session"
    assert "group.instance.id" not in chosen


def test_the_new_protocol_leaves_both_to_the_brokers():
    """The new protocol gets neither, as the client refuses them; the assignor is set only if the user names one."""
    chosen = member({"group.protocol": "consumer"})
    assert not {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"} & set(chosen)
    assert "group.remote.assignor" not in chosen
    assert member({"group.protocol": "consumer", "group.remote.assignor": "range"})["group.remote.assignor"] == "range"


def test_only_members_hear_of_the_protocol():
    """Only members of groups get the protocol: librdkafka would warn about it for other clients."""
    kafka = KAFKA | {"group.protocol": "consumer", "group.remote.assignor": "range"}
    for chosen in (properties.producer(kafka), properties.log_reader(kafka, group="g"), properties.common(kafka)):
        assert not {name for name in chosen if name.startswith("group.") and name != "group.id"}


def test_only_members_hear_of_their_limits():
    """Only members get the user's limits: a poll limit below librdkafka's own session would fail for other readers."""
    kafka = {"max.poll.interval.ms": "30000", "heartbeat.interval.ms": "1000"}
    assert member(kafka).items() >= kafka.items()
    assert member(kafka)["session.timeout.ms"] == "8000"
    for chosen in (properties.producer(KAFKA | kafka), properties.log_reader(KAFKA | kafka, group="g")):
        assert not kafka.keys() & chosen.keys()
    Consumer(properties.log_reader(KAFKA | kafka, group="g")).close()


def test_what_waits_and_what_is_on_its_way_share_the_limit():
    """Waiting records and a response on its way get half of the limit each, unpacked, or room for the largest one."""
    chosen = member(prefetch_bytes=32 * 1024 * 1024)
    assert (chosen["queued.max.messages.kbytes"], chosen["fetch.max.bytes"]) == ("16384", str(2 * 1024 * 1024))
    assert chosen["queued.min.messages"] == "32768"
    least = member(prefetch_bytes=1024 * 1024)
    assert (least["fetch.max.bytes"], least["queued.min.messages"]) == (str(1024 * 1024), "2048")
    large = member({"message.max.bytes": "20000000"}, prefetch_bytes=1024 * 1024)
    assert large["fetch.max.bytes"] == "20000000"
    assert member({"fetch.max.bytes": "7777777"}, prefetch_bytes=1024 * 1024)["fetch.max.bytes"] == "7777777"


def test_a_transactions_records_do_not_outlast_it():
    """Records of a transaction do not outlast it: a longer message timeout is reduced, a shorter one stays."""

    def timeout_ms(name, value):
        kafka = KAFKA | ({name: value} if name else {})
        chosen = properties.transactional(kafka, transactional_id="t", transaction_timeout_s=10.0)
        assert "delivery.timeout.ms" not in chosen
        return chosen["message.timeout.ms"]

    assert timeout_ms("", "") == "10000"
    assert timeout_ms("message.timeout.ms", "300000") == "10000"
    assert timeout_ms("delivery.timeout.ms", "4000") == "4000"


def test_a_transactions_records_wait_for_company():
    """Records of a transaction wait for larger batches, as readers wait for the commit; the user may change it."""
    shared = {"transactional_id": "t", "transaction_timeout_s": 10.0}
    assert int(properties.transactional(KAFKA, **shared)["linger.ms"]) > int(properties.producer(KAFKA)["linger.ms"])
    assert properties.transactional(KAFKA | {"linger.ms": "1"}, **shared)["linger.ms"] == "1"


def test_a_reader_up_to_a_boundary_learns_of_the_end_soon():
    """A reader can ask brokers to wait for 5 ms only, instead of 100; the user's own wait has priority."""
    name, own = "fetch.wait.max.ms", KAFKA | {"fetch.wait.max.ms": "7"}
    assert properties.log_reader(KAFKA, group="g")[name] == "100"
    assert properties.log_reader(KAFKA, group="g", fetch_wait_ms=5)[name] == "5"
    assert properties.log_reader(own, group="g", fetch_wait_ms=5)[name] == "7"


SECURE_KAFKA = {"bootstrap.servers": "one:9092, two:9093"}


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
    assert client_settings(SECURE_KAFKA) == {
        "bootstrap_servers": ["one:9092", "two:9093"],
        "client_id": "sowstream",
        "security_protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_name_and_a_password_are_passed_on(name):
    """Name and password are passed on, for both spellings of the mechanism."""
    login = {name: "SCRAM-SHA-512", "sasl.username": "ada", "sasl.password": "secret"}
    chosen = client_settings(SECURE_KAFKA | login | {"security.protocol": "sasl_plaintext"})
    assert (chosen["security_protocol"], chosen["sasl_mechanism"]) == ("SASL_PLAINTEXT", "SCRAM-SHA-512")
    assert (chosen["sasl_plain_username"], chosen["sasl_plain_password"]) == ("ada", "secret")
    assert "ssl_context" not in chosen


@pytest.mark.parametrize("mechanism", ["AWS_MSK_IAM", "GSSAPI", None])
def test_another_way_to_log_in_is_an_error(mechanism):
    """An unsupported login method is an error, and Kerberos, librdkafka's default, too."""
    given = {"security.protocol": "SASL_SSL"} | ({"sasl.mechanisms": mechanism} if mechanism else {})
    with pytest.raises(ConfigurationError, match=mechanism or "GSSAPI"):
        client_settings(SECURE_KAFKA | given)


def test_certificates_come_from_files_or_from_the_settings(certificate):
    """Certificates, of authorities and our own, come from files or from the settings."""
    cert, key = certificate
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(cert)}
    files = client_settings(SECURE_KAFKA | tls | {"ssl.certificate.location": str(cert), "ssl.key.location": str(key)})
    texts = {"ssl.ca.pem": cert.read_text(), "ssl.certificate.pem": cert.read_text(), "ssl.key.pem": key.read_text()}
    for chosen in (files, client_settings(SECURE_KAFKA | {"security.protocol": "ssl"} | texts)):
        context = chosen["ssl_context"]
        assert [dict(part[0] for part in one["subject"])["commonName"] for one in context.get_ca_certs()] == ["settler"]
        assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


@pytest.mark.parametrize("place", ["directory", "probe", None])
def test_authorities_are_a_directory_or_the_systems(place, certificate, tmp_path):
    """The place of the authorities may be all that librdkafka takes for it."""
    if place == "directory":
        digest = subprocess.run(
            ["openssl", "x509", "-hash", "-noout", "-in", certificate[0]], check=True, capture_output=True, text=True
        )
        (tmp_path / f"{digest.stdout.strip()}.0").write_text(certificate[0].read_text())
        place = str(tmp_path)
    given = {"security.protocol": "ssl"} | ({"ssl.ca.location": place} if place else {})
    context = client_settings(SECURE_KAFKA | given)["ssl_context"]
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


def test_addresses_may_name_their_protocol_and_leave_out_the_port():
    """kafka-python takes no protocol in an address."""
    given = {"bootstrap.servers": "SSL://one:9093, two,", "security.protocol": "PLAINTEXT"}
    assert client_settings(given)["bootstrap_servers"] == ["one:9093", "two:9092"]


@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_revoked_certificate_of_a_broker_is_refused(is_revoked, certificate, tmp_path):
    """Revocations are looked up where the settings have them: a broker that lost its key gets no password."""
    cert, key = certificate
    revocations = tmp_path / "crl.pem"
    (tmp_path / "index.txt").touch()
    (tmp_path / "crlnumber").write_text("01\n")
    (tmp_path / "ca.cnf").write_text(
        f"[ca]\ndefault_ca=own\n[own]\ndatabase={tmp_path}/index.txt\ncrlnumber={tmp_path}/crlnumber\n"
        "default_md=sha256\ndefault_crl_days=2\n"
    )
    words = ["openssl", "ca", "-config", tmp_path / "ca.cnf", "-cert", cert, "-keyfile", key]
    if is_revoked:
        subprocess.run([*words, "-revoke", cert], check=True, capture_output=True)
    subprocess.run([*words, "-gencrl", "-out", revocations], check=True, capture_output=True)
    given = {"security.protocol": "ssl", "ssl.ca.location": str(cert), "ssl.crl.location": str(revocations)}
    context = client_settings(SECURE_KAFKA | given)["ssl_context"]
    context.check_hostname = False
    assert handshake(context, cert, key) == ("revoked" if is_revoked else "done")


def handshake(context, cert, key):
    """Shake hands with a broker that has this certificate, in memory."""
    broker_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    broker_side.load_cert_chain(cert, key)
    to_broker, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_broker)
    broker = broker_side.wrap_bio(to_broker, to_client, server_side=True)
    for side in (client, broker, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message.rpartition(" ")[2]
    return "done"


def test_checks_are_left_out_only_where_the_settings_say_so(certificate):
    """The check of the host's name, or of all certificates, is disabled only by the settings."""
    tls = SECURE_KAFKA | {"security.protocol": "SSL", "ssl.ca.location": str(certificate[0])}
    no_name = client_settings(tls | {"ssl.endpoint.identification.algorithm": "none"})["ssl_context"]
    assert (no_name.check_hostname, no_name.verify_mode) == (False, ssl.CERT_REQUIRED)
    nothing = client_settings(tls | {"enable.ssl.certificate.verification": "false"})["ssl_context"]
    assert nothing.verify_mode == ssl.CERT_NONE


@pytest.mark.parametrize("given", [{"ssl.ca.location": "/nowhere"}, {"ssl.ca.pem": "no certificate"}])
def test_certificates_that_cannot_be_read_are_an_error(given):
    """A certificate that cannot be read is an error that names the section of the settings."""
    with pytest.raises(ConfigurationError, match="section `kafka`"):
        client_settings(SECURE_KAFKA | {"security.protocol": "SSL"} | given)
