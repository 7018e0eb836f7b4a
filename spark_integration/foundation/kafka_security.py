"""Translates the Kafka settings of TLS and SASL, from Java's names to librdkafka's and back.

Each function takes the settings that it translates out of a dictionary, so that what is left has no translation.
The setting `sasl.jaas.config` of Java's clients is one login module with its options: `class required name="value" …;`,
where a backslash quotes as in a Java string.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from processor.errors import ConfigurationError

_VALUE: Final = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s;\"'=]+"
_MODULE: Final = re.compile(
    rf"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)((?:\s+[\w.$-]+\s*=\s*(?:{_VALUE}))*)\s*;\s*",
    re.DOTALL | re.IGNORECASE,
)
_OPTION: Final = re.compile(rf"\s+([\w.$-]+)\s*=\s*({_VALUE})", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b", "a": "\a", "v": "\v"}
_QUOTES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})


class LoginModule(NamedTuple):
    """A login module of Java; its text holds secrets."""

    name: str
    """The full name of its class."""
    options: Mapping[str, str]
    """Its options, such as `username`."""

    @classmethod
    def parse(cls, text: str) -> LoginModule | None:
        """Read the setting; None where it is something else than one login module."""
        match = _MODULE.fullmatch(text)
        if match is None:
            return None
        return cls(match[1], {name: _unquoted(value) for name, value in _OPTION.findall(match[2])})

    def text(self) -> str:
        """The value of the setting."""
        options = "".join(f' {name}="{value.translate(_QUOTES)}"' for name, value in self.options.items())
        return f"{self.name} required{options};"


def _unquoted(value: str) -> str:
    if value[0] not in "\"'":
        return value
    return _ESCAPED.sub(lambda match: _character(match[1]), value[1:-1])


def _character(escape: str) -> str:
    return chr(int(escape, 8)) if escape.isdigit() and max(escape) < "8" else _ESCAPES.get(escape, escape)


SECURITY: Final = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.", "openssl.")
"""The beginnings of the names of security properties."""
EITHER: Final = ("security.protocol", "sasl.mechanism", "ssl.endpoint.identification.algorithm")
"""Security properties that mean the same in both dialects, and are no credentials."""
_LIBRDKAFKAS_OWN: Final = re.compile(
    r"(enable\.(sasl|ssl)|https|openssl)\..*|sasl\.(callback|mechanisms|username|password)"
    r"|sasl\.kerberos\.(keytab|principal|kinit\.cmd)"
    r"|sasl\.oauthbearer\.((assertion|client|metadata)\..*|config|extensions|grant\.type|method|scope)"
    r"|ssl\.((ca|certificate|crl|curves|sigalgs)\..*|(engine|key)\.(id|location|pem)|providers)"
)
"""Security properties of librdkafka that Java's clients do not know."""
_LIBRDKAFKAS_TOO: Final = (
    *EITHER, "sasl.kerberos.service.name", "sasl.oauthbearer.sub.claim.name", "sasl.oauthbearer.token.endpoint.url",
    "ssl.key.password", "ssl.keystore.location", "ssl.keystore.password",
)  # fmt: skip
"""Security properties that both have; key stores are in PKCS#12 there."""
_JAVAS_TIMES: Final = re.compile(r"sasl\.login\.(refresh|retry|connect|read)\..*|sasl\.kerberos\.(ticket|min)\..*")
"""Times of logging in with Java's clients, without a counterpart and of no consequence in librdkafka."""

_KAFKA: Final = "org.apache.kafka.common.security."
_MODULES: Final = {
    "PLAIN": f"{_KAFKA}plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_KAFKA}scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_KAFKA}scram.ScramLoginModule",
    "OAUTHBEARER": f"{_KAFKA}oauthbearer.OAuthBearerLoginModule",
}
"""The login module of each mechanism."""
_TOKEN_LOGIN: Final = f"{_KAFKA}oauthbearer.OAuthBearerLoginCallbackHandler"
_TOKEN_LOGINS: Final = (_TOKEN_LOGIN, f"{_KAFKA}oauthbearer.secured.OAuthBearerLoginCallbackHandler")
SHADED: Final = "kafkashaded."
"""The beginning of the names of Kafka's classes where a platform, such as Databricks, has moved them."""
_FROM_FILE: Final = {
    "config.providers": "sowstream",
    "config.providers.sowstream.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
}
_REFERENCE: Final = re.compile(r"\$\{sowstream:([^}]*):([^}:]*)\}")
"""A file that Java's client reads itself."""
_OAUTH: Final = {"clientId": "sasl.oauthbearer.client.id", "clientSecret": "sasl.oauthbearer.client.secret"}

_JAVA: Final = "Spark's Kafka client, which is Java's"
_LIBRDKAFKA: Final = "librdkafka, with which Sowstream itself reads and asks"
_INSTEAD: Final = {
    "ssl.truststore.": "ssl.ca.location (a PEM file)",
    "ssl.keystore.": "ssl.certificate.location and ssl.key.location (PEM files)",
    "sasl.": "sasl.username and sasl.password, or sasl.oauthbearer.method, or sasl.callback (tokens from a plug-in)",
    "": "librdkafka's setting of the same purpose",
}
"""librdkafka's settings for the purpose of Java's, by the beginning of the name."""
_IN_OPTIONS: Final = "give Java's setting of the same purpose in options={'kafka.…': …}"


class Untranslatable(ConfigurationError):
    """A setting of one dialect that has no counterpart in the other; its message has the name, never the value."""


def security(properties: Mapping[str, str]) -> dict[str, str]:
    """The security properties among others."""
    return {name: text for name, text in properties.items() if name.startswith(SECURITY)}


def java_security(properties: Mapping[str, str]) -> dict[str, str]:
    """The security properties of a Java client.

    Args:
        properties: properties in any dialect.

    Raises:
        Untranslatable: one has no counterpart in Java.
        ConfigurationError: one is of no use without another.
    """
    rest = _used(properties)
    found = _trust_of_java(rest) | _identity_of_java(rest) | _login_of_java(rest)
    if rest.get("enable.ssl.certificate.verification") == "true":
        rest.pop("enable.ssl.certificate.verification")
    if rest.get("ssl.endpoint.identification.algorithm") == "none":
        rest["ssl.endpoint.identification.algorithm"] = ""
    if "-" in rest.get("ssl.cipher.suites", ""):
        _refuse("ssl.cipher.suites", _JAVA, "OpenSSL's names of ciphers are not Java's; leave it out")
    if untranslated := sorted(filter(_LIBRDKAFKAS_OWN.fullmatch, rest)):
        _refuse(untranslated[0], _JAVA, _IN_OPTIONS)
    return found | rest


def _refuse(name: str, dialect: str, do: str) -> NoReturn:
    raise Untranslatable(f"the Kafka setting {name!r} cannot be translated for {dialect}: {do}")


def refuse_for_librdkafka(name: str, *problem: str) -> NoReturn:
    """Refuse a setting of Java, with the settings to write instead.

    Raises:
        Untranslatable: always.
    """
    instead = next(names for begin, names in _INSTEAD.items() if name.startswith(begin))
    _refuse(name, _LIBRDKAFKA, "; ".join((*problem, f"write {instead} into a section `kafka` of the settings")))


def _trust_of_java(rest: dict[str, str]) -> dict[str, str]:
    """The certificates that a Java client trusts."""
    location, pem = rest.pop("ssl.ca.location", None), rest.pop("ssl.ca.pem", None)
    if pem is not None:
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem}
    if location in (None, "probe"):
        return {}
    if Path(location).is_dir():
        _refuse("ssl.ca.location", _JAVA, "it is a folder; name one PEM file with all certificates")
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": location}


def _identity_of_java(rest: dict[str, str]) -> dict[str, str]:
    """The certificate and key of a Java client: PEM files stay files, which it reads itself."""
    if rest.get("ssl.keystore.location") is not None and "ssl.keystore.type" not in rest:
        return {"ssl.keystore.type": _store_type(rest["ssl.keystore.location"])}
    parts: dict[str, str] = {}
    for part, property_of_java in (("certificate", "ssl.keystore.certificate.chain"), ("key", "ssl.keystore.key")):
        location, pem = rest.pop(f"ssl.{part}.location", None), rest.pop(f"ssl.{part}.pem", None)
        if location is not None:
            _refuse_old_key(location, f"ssl.{part}.location")
            path = Path(location).absolute()
            # A key that is read by the client itself does not pass through Spark's plans and pages.
            parts |= _FROM_FILE | {property_of_java: f"${{sowstream:{path.parent}:{path.name}}}"}
        elif pem is not None:
            parts[property_of_java] = pem
    return parts and {"ssl.keystore.type": "PEM", **parts}


def _refuse_old_key(location: str, name: str) -> None:
    try:
        text = Path(location).read_text(encoding="ascii", errors="replace")
    except OSError:
        return  # It may be on the executors only.
    if re.search("BEGIN (RSA|EC|DSA) PRIVATE KEY", text):
        _refuse(
            name, _JAVA, f"its key is not in PKCS#8: `openssl pkcs8 -topk8 -in {location} -out …` writes one that is"
        )


def _login_of_java(rest: dict[str, str]) -> dict[str, str]:
    """The login of a Java client."""
    mechanism = rest.get("sasl.mechanism", "").upper()
    if "sasl.jaas.config" in rest:
        if "sasl.username" in rest or "sasl.password" in rest:
            raise ConfigurationError(
                "the Kafka settings have sasl.jaas.config, and sasl.username or sasl.password: give one"
            )
        return {}
    if mechanism == "OAUTHBEARER" and rest.get("sasl.oauthbearer.method", "").lower() == "oidc":
        return _token_login_of_java(rest)
    name, password = rest.pop("sasl.username", None), rest.pop("sasl.password", None)
    if name is None and password is None:
        return {}
    if name is None or password is None:
        lacking, present = ("username", "password") if name is None else ("password", "username")
        raise ConfigurationError(f"the Kafka settings have sasl.{present}, which is of no use without sasl.{lacking}")
    if mechanism not in _MODULES:
        _refuse("sasl.mechanism", _JAVA, f"name and password serve with {', '.join(list(_MODULES)[:3])}; {_IN_OPTIONS}")
    return {"sasl.jaas.config": LoginModule(_MODULES[mechanism], {"username": name, "password": password}).text()}


def _token_login_of_java(rest: dict[str, str]) -> dict[str, str]:
    rest.pop("sasl.oauthbearer.method")
    credentials = {option: rest.pop(name, None) for option, name in _OAUTH.items()}
    for option, name in _OAUTH.items():
        # librdkafka has a second name for both.
        other = rest.pop(name.replace("bearer.", "bearer.client.credentials."), None)
        credentials[option] = credentials[option] if credentials[option] is not None else other
        if credentials[option] is None:
            raise ConfigurationError(
                f"the Kafka settings have sasl.oauthbearer.method, which is of no use without {name}"
            )
    credentials["scope"] = rest.pop("sasl.oauthbearer.scope", None)
    for extension in filter(None, rest.pop("sasl.oauthbearer.extensions", "").split(",")):
        name, _, text = extension.partition("=")
        credentials[f"extension_{name.strip()}"] = text.strip()
    options = {name: text for name, text in credentials.items() if text is not None}
    return {
        "sasl.jaas.config": LoginModule(_MODULES["OAUTHBEARER"], options).text(),
        "sasl.login.callback.handler.class": _TOKEN_LOGIN,
    }


def librdkafka_security(properties: Mapping[str, str]) -> dict[str, str]:
    """The security properties of librdkafka.

    Args:
        properties: properties in any dialect.

    Raises:
        Untranslatable: one has no counterpart in librdkafka.
    """
    rest = {name: text for name, text in _used(properties).items() if not _JAVAS_TIMES.fullmatch(name)}
    found = _trust_of_librdkafka(rest) | _identity_of_librdkafka(rest) | _login_of_librdkafka(rest)
    if rest.get("ssl.endpoint.identification.algorithm") == "":
        rest["ssl.endpoint.identification.algorithm"] = "none"
    if "TLS_" in rest.get("ssl.cipher.suites", "") and "WITH" in rest["ssl.cipher.suites"]:
        _refuse("ssl.cipher.suites", _LIBRDKAFKA, "Java's names of ciphers are not OpenSSL's; leave it out")
    known = (*_LIBRDKAFKAS_TOO, "ssl.cipher.suites")
    if untranslated := sorted(name for name in rest if name not in known and not _LIBRDKAFKAS_OWN.fullmatch(name)):
        refuse_for_librdkafka(untranslated[0])
    return found | rest


def _trust_of_librdkafka(rest: dict[str, str]) -> dict[str, str]:
    location, pem = rest.pop("ssl.truststore.location", None), rest.pop("ssl.truststore.certificates", None)
    kind, _ = rest.pop("ssl.truststore.type", None), rest.pop("ssl.truststore.password", None)
    if pem is not None:
        return {"ssl.ca.pem": pem}
    if location is None:
        return {}
    if (kind or _store_type(location)).upper() != "PEM":
        refuse_for_librdkafka(
            "ssl.truststore.location", f"it is no PEM file; `keytool -list -rfc -keystore {location}` prints one"
        )
    return {"ssl.ca.location": location}


def _identity_of_librdkafka(rest: dict[str, str]) -> dict[str, str]:
    kind, location = rest.pop("ssl.keystore.type", None), rest.get("ssl.keystore.location")
    chain, key = rest.pop("ssl.keystore.certificate.chain", None), rest.pop("ssl.keystore.key", None)
    if location is None:
        parts = {"certificate": chain, "key": key}
        return dict(_pem_of_librdkafka(part, text) for part, text in parts.items() if text is not None)
    kind = (kind or _store_type(location)).upper()
    if kind == "PEM":
        # Certificates and key are in one file; each reader takes its own part.
        rest.pop("ssl.keystore.location")
        return {"ssl.certificate.location": location, "ssl.key.location": location}
    if kind != "PKCS12":
        _refuse(
            "ssl.keystore.location", _LIBRDKAFKA,
            f"it is of type {kind}; `keytool -importkeystore -deststoretype PKCS12 -srckeystore …` converts it",
        )  # fmt: skip
    return {}


def _pem_of_librdkafka(part: str, text: str) -> tuple[str, str]:
    if (file := _REFERENCE.fullmatch(text)) is not None:
        return f"ssl.{part}.location", f"{file[1]}/{file[2]}"
    return f"ssl.{part}.pem", text


def _login_of_librdkafka(rest: dict[str, str]) -> dict[str, str]:
    text = rest.pop("sasl.jaas.config", None)
    handler = rest.pop("sasl.login.callback.handler.class", None)
    if handler is not None and handler.removeprefix(SHADED) not in _TOKEN_LOGINS:
        refuse_for_librdkafka("sasl.login.callback.handler.class")
    if text is None:
        return {}
    module, mechanism = LoginModule.parse(text), rest.get("sasl.mechanism", "").upper()
    if module is None or module.name.removeprefix(SHADED) != _MODULES.get(mechanism):
        refuse_for_librdkafka("sasl.jaas.config", f"it is not the login module of sasl.mechanism {mechanism!r}")
    options = dict(module.options)
    if mechanism == "OAUTHBEARER":
        return _token_login_of_librdkafka(options, handler)
    found = {f"sasl.{name}": options.pop(name, "") for name in ("username", "password")}
    if options:
        refuse_for_librdkafka("sasl.jaas.config", f"its option {min(options)!r} has no counterpart")
    return found


def _token_login_of_librdkafka(options: dict[str, str], handler: str | None) -> dict[str, str]:
    if handler is None:
        refuse_for_librdkafka("sasl.jaas.config", "unsecured tokens are for trials in Java")
    found = {"sasl.oauthbearer.method": "oidc"}
    found |= {name: options.pop(option) for option, name in _OAUTH.items() if option in options}
    if "scope" in options:
        found["sasl.oauthbearer.scope"] = options.pop("scope")
    extensions = {name: options.pop(name) for name in list(options) if name.startswith("extension_")}
    if extensions:
        pairs = (f"{name.removeprefix('extension_')}={text}" for name, text in extensions.items())
        found["sasl.oauthbearer.extensions"] = ",".join(pairs)
    if options:
        refuse_for_librdkafka("sasl.jaas.config", f"its option {min(options)!r} has no counterpart")
    return found


def _used(properties: Mapping[str, str]) -> dict[str, str]:
    """The security properties that the protocol uses: others need no counterpart."""
    protocol = properties.get("security.protocol", "SASL_SSL").upper()
    unused = tuple(
        prefix
        for prefix, is_used in (("sasl.", "SASL" in protocol), ("enable.sasl.", "SASL" in protocol),
                                ("ssl.", protocol.endswith("SSL")), ("enable.ssl.", protocol.endswith("SSL")))
        if not is_used
    )  # fmt: skip
    used = {name: text for name, text in security(properties).items() if not name.startswith(unused)}
    # librdkafka reads it in any case of letters, Java does not.
    return used | ({"security.protocol": protocol} if "security.protocol" in used else {})


def _store_type(location: str) -> str:
    """The type of a key store: by its first bytes, or where it is not on this machine by its name."""
    try:
        with Path(location).open("rb") as file:
            begin = file.read(4)
    except OSError:
        suffix = Path(location).suffix.lower()
        return "PEM" if suffix == ".pem" else "JKS" if suffix == ".jks" else "PKCS12"
    if begin == b"\xfe\xed\xfe\xed":
        return "JKS"
    return "PKCS12" if begin[:1] == b"\x30" else "PEM"
