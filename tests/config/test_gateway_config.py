"""The section `gateway`: an address that can be reached from elsewhere needs a decision about who may connect."""

import pytest
from pydantic import ValidationError

from processor.config import Config
from processor.config.gateway import GatewayConfig


def test_the_defaults_are_local_and_open():
    """Without settings the gateway listens on the loopback address alone."""
    assert GatewayConfig().address == ("127.0.0.1", 8080)
    assert GatewayConfig(listen="[::1]:9").address == ("::1", 9)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"listen": "0.0.0.0:8080"}, "set auth, or write `auth: none`"),
        ({"listen": "8080"}, "write HOST:PORT"),
        ({"listen": "127.0.0.1:70000"}, "write HOST:PORT"),
        ({"auth": {}}, "give jwt, tokens_file or both"),
        ({"auth": {"tokens_file": "t"}}, "entitlements"),
        ({"auth": {"jwt": {"issuer": "i", "audience": "a"}}, "entitlements": "e"}, "jwks_url and public_key_file"),
        (
            {"auth": {"jwt": {"issuer": "i", "audience": "a", "jwks_url": "u", "algorithms": ["none"]}}},
            "algorithms",
        ),
        *(
            ({"auth": {"jwt": {"issuer": "i", "audience": "a", "jwks_url": url}}, "entitlements": "e"}, "jwks_url: ")
            for url in (
                "http://id.example.com/keys",
                "http://10.0.0.7/keys",
                "ftp://localhost/keys",
                "keys",
                "https:///k",
            )
        ),
        ({"indexes": {"orders": [["customer"]]}}, "indexes"),
        ({"limits": {"connections": 0}}, "connections"),
        ({"colour": 1}, "colour"),
    ],
)
def test_a_section_that_cannot_be_meant_is_refused(settings, problem):
    """A wrong setting is refused with its name or its remedy."""
    with pytest.raises(ValidationError) as caught:
        GatewayConfig(**settings)
    assert problem in str(caught.value)


@pytest.mark.parametrize("settings", [{"auth": "none"}, {"auth": {"tokens_file": "t"}, "entitlements": "e"}])
def test_another_address_is_accepted_with_a_decision(settings):
    """An address for all is accepted with `auth`, or with `auth: none` written out."""
    assert GatewayConfig(listen="0.0.0.0:80", **settings).address == ("0.0.0.0", 80)


def test_a_topic_that_is_not_configured_is_refused():
    """The gateway serves and indexes configured topics only."""
    for section in ({"topics": ["ordres"]}, {"indexes": {"ordres": [["/a"]]}}, {"orders": {"ordres": ["/a"]}}):
        with pytest.raises(ValidationError, match="orders"):
            Config(topics={"orders": {}}, gateway=section)


@pytest.mark.parametrize(
    "url", ["https://id.example.com/keys", "http://127.0.0.1:80/keys", "http://[::1]/k", "http://localhost/k"]
)
def test_keys_of_an_issuer_come_over_https_or_from_this_machine(url):
    """Over http on the loopback address only this machine can answer with keys."""
    jwt = {"issuer": "i", "audience": "a", "jwks_url": url}
    assert GatewayConfig(auth={"jwt": jwt}, entitlements="e").auth.jwt.jwks_url == url
