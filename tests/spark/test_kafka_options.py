from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.config import load
from processor.errors import ConfigurationError

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sowstream[spark]'")

from spark_integration.foundation.kafka_options import KafkaOptions, environment_section
from spark_integration.foundation.kafka_security import LoginModule, Untranslatable
from spark_integration.foundation.pyspark_private import running_jvm
from spark_integration.foundation.settings import topic_settings

SERVERS = {"bootstrap.servers": "a:1"}
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
DIRECTORY = "org.apache.kafka.common.config.provider.DirectoryConfigProvider"

PAIRS = {
    "plain text": ({}, {}),
    "a protocol": ({"security.protocol": "PLAINTEXT"}, {"security.protocol": "PLAINTEXT"}),
    "PLAIN": (
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": 'p"\\'},
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN} required username="u" password="p\\"\\\\";',
        },
    ),
    "SCRAM": (
        {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "u", "sasl.password": "p",
        },
        {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{SCRAM} required username="u" password="p";',
        },
    ),
    "OAUTHBEARER": (
        {
            "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "i", "sasl.oauthbearer.client.secret": "s",
            "sasl.oauthbearer.scope": "sc", "sasl.oauthbearer.extensions": "logicalCluster=lkc,pool=p",
            "sasl.oauthbearer.token.endpoint.url": "https://t/",
        },
        {
            "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f'{OAUTH} required clientId="i" clientSecret="s" scope="sc" '
            'extension_logicalCluster="lkc" extension_pool="p";',
            "sasl.login.callback.handler.class": HANDLER,
            "sasl.oauthbearer.token.endpoint.url": "https://t/",
        },
    ),
    "a PEM file with certificate authorities": (
        {"security.protocol": "SSL", "ssl.ca.location": "/ca.pem"},
        {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"},
    ),
    "PEM texts": (
        {"security.protocol": "SSL", "ssl.ca.pem": "A", "ssl.certificate.pem": "C", "ssl.key.pem": "K",
         "ssl.key.password": "p"},
        {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.certificates": "A",
         "ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "C", "ssl.keystore.key": "K",
         "ssl.key.password": "p"},
    ),
    "PKCS#12": (
        {"security.protocol": "SSL", "ssl.keystore.location": "/k.p12", "ssl.keystore.password": "p"},
        {"security.protocol": "SSL", "ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/k.p12",
         "ssl.keystore.password": "p"},
    ),
    "host names that are not verified": (
        {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"},
        {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""},
    ),
}  # fmt: skip
"""Settings of librdkafka, and the same for Java."""


@pytest.mark.parametrize(("librdkafka", "java"), PAIRS.values(), ids=PAIRS)
def test_each_dialect_is_translated_to_the_other(librdkafka, java) -> None:
    """Settings in either dialect give those of both clients, from the options as from the section `kafka`."""
    librdkafka, java = SERVERS | librdkafka, SERVERS | java
    prefixed = {f"Kafka.{name}": text for name, text in java.items()}
    for own in (
        KafkaOptions.of(prefixed),
        KafkaOptions.of(java),
        KafkaOptions.of(librdkafka),
        KafkaOptions.of({}, librdkafka),
    ):
        assert own.java() == java
        assert own.librdkafka() == librdkafka


def test_pem_files_are_read_by_the_client_itself(tmp_path: Path) -> None:
    """A key in a PEM file is a reference for Java, so that it passes neither through Spark's plans nor its pages."""
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    files = {"ssl.certificate.location": str(tmp_path / "cert.pem"), "ssl.key.location": str(tmp_path / "key.pem")}
    java = KafkaOptions.of({"kafka.config.providers": "mine"}, SERVERS | files).java()
    assert KafkaOptions.of(java).librdkafka() == SERVERS | files
    assert java == SERVERS | {
        "config.providers": "mine,sowstream",
        "config.providers.sowstream.class": DIRECTORY,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": f"${{sowstream:{tmp_path}:cert.pem}}",
        "ssl.keystore.key": f"${{sowstream:{tmp_path}:key.pem}}",
    }
    combined = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "/both.pem"}
    assert KafkaOptions.of(SERVERS | combined).librdkafka() == SERVERS | {
        "ssl.certificate.location": "/both.pem",
        "ssl.key.location": "/both.pem",
    }


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"\xfe\xed\xfe\xed", "JKS"), (b"\x30\x82", "PKCS12"), (b"-----BEGIN", "PEM"), (None, "PKCS12")],
)
def test_the_type_of_a_store_is_found(tmp_path: Path, content, kind) -> None:
    """The type of a store is known by its first bytes; a store that is not on this machine is one of PKCS#12."""
    store = tmp_path / "store"
    if content is not None:
        store.write_bytes(content)
    own = KafkaOptions.of(SERVERS | {"ssl.keystore.location": str(store)})
    assert own.java()["ssl.keystore.type"] == kind


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"sasl.jaas.config": "com.acme.Module required secret=hunter2;"}, "sasl.jaas.config"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{SCRAM} required password=hunter2;"}, "sasl.jaas.config"),
        ({"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": f"{SCRAM} required x=hunter2;"}, "sasl.jaas.config"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": f"{OAUTH} required x=hunter2;"}, "sasl.jaas.config"),
        ({"sasl.client.callback.handler.class": "hunter2"}, "sasl.client.callback.handler.class"),
        ({"sasl.login.callback.handler.class": "hunter2"}, "sasl.login.callback.handler.class"),
        ({"ssl.truststore.location": "/t.jks", "ssl.truststore.password": "hunter2"}, "ssl.truststore.location"),
        ({"ssl.truststore.location": "/t", "ssl.truststore.type": "PKCS12"}, "ssl.truststore.location"),
        ({"ssl.keystore.location": "/t.jks", "ssl.keystore.password": "hunter2"}, "ssl.keystore.location"),
        ({"ssl.engine.factory.class": "hunter2"}, "ssl.engine.factory.class"),
        ({"ssl.enabled.protocols": "hunter2"}, "ssl.enabled.protocols"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_hunter2"}, "ssl.cipher.suites"),
        ({"ssl.keystore.password": "${vault:hunter2}"}, "ssl.keystore.password"),
    ],
)  # fmt: skip
def test_what_librdkafka_cannot_have_is_named(options, name) -> None:
    """A setting of Java without a counterpart is an error with its name, without its value, and Java still has it."""
    own = KafkaOptions.of(SERVERS | options)
    with pytest.raises(Untranslatable, match=f"the Kafka setting '{name}' cannot be translated for librdkafka") as told:
        own.librdkafka()
    assert "hunter2" not in f"{told.value} {own!r}"
    assert own.java().items() >= options.items()


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("ssl.truststore.location", r"write ssl\.ca\.location \(a PEM file\)"),
        ("ssl.truststore.provider", r"write ssl\.ca\.location \(a PEM file\)"),
        ("ssl.keystore.alias", r"write ssl\.certificate\.location and ssl\.key\.location"),
        ("sasl.client.callback.handler.class", r"write sasl\.username and sasl\.password, .*or sasl\.callback"),
        ("ssl.engine.factory.class", "write librdkafka's setting of the same purpose"),
    ],
)
def test_the_setting_to_use_instead_is_named(option, instead) -> None:
    """The error for a setting of Java alone ends with librdkafka's settings for that purpose, and their place."""
    with pytest.raises(Untranslatable, match=f"{instead}.* into a section `kafka` of the settings$"):
        KafkaOptions.of(SERVERS | {option: "/t.jks"}).librdkafka()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"enable.ssl.certificate.verification": "false"}, "enable.ssl.certificate.verification"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.config": "hunter2"}, "sasl.oauthbearer.config"),
        ({"sasl.mechanism": "GSSAPI", "sasl.kerberos.keytab": "hunter2"}, "sasl.kerberos.keytab"),
        ({"sasl.mechanism": "GSSAPI", "sasl.username": "u", "sasl.password": "hunter2"}, "sasl.mechanism"),
        ({"ssl.crl.location": "hunter2"}, "ssl.crl.location"),
        ({"ssl.cipher.suites": "ECDHE-hunter2"}, "ssl.cipher.suites"),
        ({"ssl.ca.location": "/"}, "ssl.ca.location"),
    ],
)
def test_what_java_cannot_have_is_named(options, name) -> None:
    """A setting of librdkafka without a counterpart is an error with its name, without its value."""
    with pytest.raises(Untranslatable, match=f"the Kafka setting '{name}' cannot be translated for Spark's") as told:
        KafkaOptions.of({}, SERVERS | options).java()
    assert "hunter2" not in str(told.value)


def test_a_key_that_java_cannot_read_is_refused(tmp_path: Path) -> None:
    """A key of PKCS#1, which Java's PEM reader does not know, is an error with the command that converts it."""
    (tmp_path / "k.pem").write_text("-----BEGIN RSA PRIVATE KEY-----\n")
    own = KafkaOptions.of({}, SERVERS | {"ssl.key.location": str(tmp_path / "k.pem")})
    with pytest.raises(Untranslatable, match=r"'ssl\.key\.location' .*`openssl pkcs8 -topk8"):
        own.java()


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        ({"sasl.mechanism": "PLAIN", "sasl.username": "u"}, "sasl.password"),
        ({"sasl.mechanism": "PLAIN", "sasl.password": "u"}, "sasl.username"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"}, "sasl.oauthbearer.client.id"),
        ({"sasl.username": "u", "sasl.jaas.config": "x"}, "give one"),
    ],
)
def test_half_a_login_is_an_error(options, lacks) -> None:
    """A name without its password, and credentials in both dialects at once, are errors with the setting's name."""
    with pytest.raises(ConfigurationError, match=lacks):
        KafkaOptions.of(SERVERS | options).java()


def test_options_replace_the_settings() -> None:
    """Options have priority over the section `kafka`: none of its login or certificates is mixed in."""
    section = SERVERS | {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p",
        "ssl.ca.location": "/ca.pem", "statistics.interval.ms": "5",
    }  # fmt: skip
    jaas = f'{SCRAM} required username="v" password="q";'
    options = {"kafka.sasl.mechanism": "SCRAM-SHA-256", "kafka.sasl.jaas.config": jaas, "kafka.ssl.ca.pem": "A"}
    own = KafkaOptions.of(options, section)
    assert own.librdkafka() == SERVERS | {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "v", "sasl.password": "q",
        "ssl.ca.pem": "A", "statistics.interval.ms": "5",
    }  # fmt: skip
    assert own.java() == SERVERS | {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas,
        "ssl.truststore.type": "PEM", "ssl.truststore.certificates": "A",
    }  # fmt: skip
    assert KafkaOptions.of({"kafka.sasl.password": "new"}, section).librdkafka()["sasl.password"] == "new"


def test_a_protocol_without_them_needs_no_counterpart() -> None:
    """Settings of TLS and SASL that the protocol does not use are dropped, and so need no translation."""
    section = SERVERS | {"security.protocol": "SSL", "ssl.crl.location": "/crl", "sasl.username": "u"}
    assert KafkaOptions.of({"kafka.security.protocol": "PLAINTEXT"}, section).java() == SERVERS | {
        "security.protocol": "PLAINTEXT"
    }


def test_each_client_may_have_credentials_of_its_own() -> None:
    """The credentials of the section `kafka` are for librdkafka if those of the options are for Java alone."""
    section = SERVERS | {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    options = {"kafka.sasl.mechanism": "AWS_MSK_IAM", "kafka.sasl.client.callback.handler.class": "x.Y",
               "kafka.sasl.jaas.config": "x.Z required;"}  # fmt: skip
    own = KafkaOptions.of(options, section)
    assert own.java().items() >= {name.removeprefix("kafka."): text for name, text in options.items()}.items()
    assert own.librdkafka()["sasl.password"] == "p"


def test_tuning_stays_with_its_client() -> None:
    """Other settings reach the client that they are for, under its name for them, and no other one."""
    options = {"kafka.max.poll.records": "5", "kafka.fetch.max.wait.ms": "7", "kafka.request.timeout.ms": "9",
               "kafka.socket.keepalive.enable": "true", "startingOffsets": "earliest"}  # fmt: skip
    own = KafkaOptions.of(options, SERVERS | {"linger.ms": "3"})
    assert own.librdkafka() == SERVERS | {"linger.ms": "3", "socket.timeout.ms": "9"}
    assert own.librdkafka(tuned=True) == SERVERS | {
        "linger.ms": "3", "socket.timeout.ms": "9", "fetch.wait.max.ms": "7", "socket.keepalive.enable": "true",
    }  # fmt: skip
    assert own.java() == SERVERS | {
        "max.poll.records": "5", "fetch.max.wait.ms": "7", "request.timeout.ms": "9", "socket.keepalive.enable": "true",
    }  # fmt: skip


def test_classes_of_kafka_are_named_as_the_platform_has_them() -> None:
    """The names of Kafka's classes in the settings are moved once on a platform that has moved the classes."""
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "org.apache.kafka.u", "sasl.password": "p"}
    java = KafkaOptions.of({}, SERVERS | login).java(shaded=True)
    assert java["sasl.jaas.config"].startswith(f"kafkashaded.{PLAIN} required ")
    assert KafkaOptions.of(java).java(shaded=True) == java
    assert KafkaOptions.of(java).librdkafka() == SERVERS | login


def test_secrets_come_from_the_environment(monkeypatch) -> None:
    """Properties in the environment replace those of a mapping, with the names that `sowstream` itself reads."""
    monkeypatch.setenv("SOWSTREAM_KAFKA__SASL.PASSWORD", "Hunter2")
    monkeypatch.setenv("SOWSTREAM_KAFKA__SASL_PASSWORD", "no")
    monkeypatch.setenv("SOWSTREAM_KAFKA__SSL_CA_LOCATION", "/ca.pem")
    monkeypatch.setenv("SOWSTREAM_KAFKA", '{"bootstrap.servers": "b:2", "sasl.password": "no", "ssl.key.password": 5}')
    wanted = {"sasl.password": "Hunter2", "ssl.ca.location": "/ca.pem", "ssl.key.password": "5"}
    assert environment_section() == {"bootstrap.servers": "b:2", **wanted}
    settings = topic_settings("orders", {"kafka": {"sasl.username": "u", "sasl.password": "no"}})
    assert settings.kafka == environment_section() | {"sasl.username": "u"}
    assert topic_settings("orders", None).kafka == environment_section()
    assert load(None).kafka == environment_section(), "one way to name them"
    monkeypatch.setenv("SOWSTREAM_KAFKA", "hunter2")
    with pytest.raises(ConfigurationError, match="SOWSTREAM_KAFKA is no JSON object") as told:
        environment_section()
    assert "hunter2" not in str(told.value)


@given(st.dictionaries(st.from_regex(r"[a-zA-Z][\w.-]*", fullmatch=True), st.text(), max_size=4))
def test_any_login_module_is_read_as_it_was_written(options) -> None:
    """A login module with any options is the same after it was written and read."""
    module = LoginModule(SCRAM, options)
    assert LoginModule.parse(module.text()) == module


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{SCRAM} required username=u password='p w';", {"username": "u", "password": "p w"}),
        (f'\n{SCRAM}  optional\n username="a\\"b\\\\c" ;\n', {"username": 'a"b\\c'}),
        (f"{SCRAM} required;", {}),
        (f'{SCRAM} required password="\\101\\n";', {"password": "A\n"}),
        ("", None),
        (f"{SCRAM} required username=u", None),
        (f"{SCRAM} required; {PLAIN} required;", None),
    ],
)
def test_login_modules_are_read_as_java_reads_them(text, options) -> None:
    """Quotes, escapes and several lines are read; anything but one login module is not."""
    module = LoginModule.parse(text)
    assert (module and module.options) == options


@pytest.mark.spark
def test_java_reads_the_password_that_was_written(spark) -> None:
    """Kafka's own reader finds each character of a password in a login module that was written here."""
    jvm = running_jvm()
    for password in ['a"b\\c', "p;w='x'", "line\nbreak\r\ttab", "ü😀 //no comment /* nor this */", "\\n", "", "$'\\'"]:
        settings = jvm.java.util.HashMap()
        settings.put("sasl.jaas.config", jvm.org.apache.kafka.common.config.types.Password(
            LoginModule(SCRAM, {"username": "u", "password": password}).text()
        ))  # fmt: skip
        context = jvm.org.apache.kafka.common.security.JaasContext.loadClientContext(settings)
        assert context.configurationEntries().get(0).getOptions().get("password") == password
