"""Tokens of the mechanism OAUTHBEARER: from a token endpoint, and from a plug-in."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from kafka.errors import KafkaConnectionError

from processor.errors import BrokerUnavailable, ConfigurationError
from processor.kafka import properties
from processor.kafka.python_client import client_settings
from processor.kafka.tokens import GROUP, token_source, with_callback
from tests.secured.token_endpoint import TokenEndpoint, secret_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CALLED: list[str] = []
PLUG_IN = {
    "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.callback": "signer",
    "sasl.oauthbearer.config": "region=here",
}  # fmt: skip


def sign(config: str) -> tuple[str, float, str, dict[str, str]]:
    """A token, its end, the principal and the extensions."""
    CALLED.append(config)
    if config == "broken":
        raise OSError("no role")
    return f"token {len(CALLED)}", time.time() + 3600, "ada", {"trace": "7"}


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[TokenEndpoint]:
    """A token endpoint."""
    with TokenEndpoint(tmp_path) as running:
        yield running


@pytest.fixture
def signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed plug-in."""
    info = tmp_path / "signer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: signer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nsigner = {__name__}:sign\n")
    monkeypatch.syspath_prepend(tmp_path)
    CALLED.clear()


def oidc(endpoint: TokenEndpoint, **changes: str) -> dict[str, str]:
    """The section `kafka` of a client of the endpoint."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "worker",
        "sasl.oauthbearer.client.secret": secret_of("worker"),
        "sasl.oauthbearer.token.endpoint.url": endpoint.url,
    } | changes


def test_a_token_is_fetched_once_and_kept(endpoint: TokenEndpoint) -> None:
    """Of two calls within a token's time one asks the endpoint; the extensions are those of the settings."""
    source = token_source(oidc(endpoint, **{"sasl.oauthbearer.extensions": "a=1, b=2"}))
    first, second = source(), source()
    assert first is second
    assert endpoint.issued == ["worker"]
    assert first.extensions == {"a": "1", "b": "2"}
    assert 3500 < first.expires_s - time.time() <= 3600


def test_a_token_near_its_end_is_replaced(endpoint: TokenEndpoint) -> None:
    """A token that has ended is not used again."""
    endpoint.lifetime_s = 0
    source = token_source(oidc(endpoint))
    source()
    source()
    assert endpoint.issued == ["worker", "worker"]


def test_a_wrong_secret_is_an_error_of_the_settings(endpoint: TokenEndpoint) -> None:
    """A refusal names the endpoint and the properties, and not the secret."""
    with pytest.raises(ConfigurationError, match=r"401.*Check kafka\.sasl\.oauthbearer\.client\.id") as raised:
        token_source(oidc(endpoint, **{"sasl.oauthbearer.client.secret": "hunter2"}))()
    assert endpoint.url in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_a_redirect_of_the_endpoint_does_not_have_the_secret(endpoint: TokenEndpoint) -> None:
    """A client follows the redirect of a token endpoint without the secret, which is for the endpoint alone."""
    endpoint.redirect = endpoint.url.replace("127.0.0.1", "localhost")
    with pytest.raises(ConfigurationError, match="401"):
        token_source(oidc(endpoint))()
    assert endpoint.authorizations == [""]


def test_an_endpoint_that_is_away_may_come_back(endpoint: TokenEndpoint) -> None:
    """A failing endpoint, and a port without one, are errors that pass; the next call asks again."""
    source = token_source(oidc(endpoint))
    endpoint.is_refusing = True
    with pytest.raises(BrokerUnavailable, match="503"):
        source()
    endpoint.is_refusing = False
    assert source().text
    provider = client_settings(oidc(endpoint))["sasl_oauth_token_provider"]
    endpoint.is_refusing = True
    with pytest.raises(KafkaConnectionError, match="503"):  # The connection is tried again.
        provider.token()
    with pytest.raises(BrokerUnavailable, match="refused"):
        token_source(oidc(endpoint, **{"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"}))()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sasl.oauthbearer.method": "default"}, r"set kafka\.sasl\.oauthbearer\.method to oidc, or kafka\.sasl\.call"),
        ({"sasl.oauthbearer.client.id": ""}, r"kafka\.sasl\.oauthbearer\.client\.id is missing"),
        ({"sasl.oauthbearer.grant.type": "jwt-bearer"}, "not with kafka.sasl.oauthbearer.grant.type: jwt-bearer"),
    ],
)
def test_settings_without_a_way_to_a_token_are_refused(endpoint: TokenEndpoint, changes, sentence) -> None:
    """Each missing or unsupported property has its own sentence, when the client is made."""
    with pytest.raises(ConfigurationError, match=sentence):
        token_source(oidc(endpoint, **changes))


def test_a_plug_in_serves_both_clients(signer: None) -> None:
    """Librdkafka receives the function and not our property; kafka-python receives its token and extensions."""
    made = properties.common(PLUG_IN)
    assert "sasl.callback" not in made
    assert made["oauth_cb"]("x")[0] == "token 1"
    provider = client_settings(PLUG_IN)["sasl_oauth_token_provider"]
    assert (provider.token(), provider.extensions()) == ("token 2", {"trace": "7"})
    assert CALLED == ["x", "region=here"]


def test_a_plug_in_that_is_not_there_is_an_error_with_those_that_are(signer: None) -> None:
    """A wrong name gets a suggestion; another mechanism than OAUTHBEARER is refused."""
    with pytest.raises(ConfigurationError, match=r"SASL callback 'singer'.*signer"):
        with_callback(PLUG_IN | {"sasl.callback": "singer"})
    with pytest.raises(ConfigurationError, match=r"set kafka\.sasl\.mechanism to OAUTHBEARER"):
        with_callback(PLUG_IN | {"sasl.mechanism": "PLAIN"})


def test_the_error_of_a_plug_in_is_logged(signer: None, caplog: pytest.LogCaptureFixture) -> None:
    """Librdkafka drops the text of an exception; the log has it."""
    with pytest.raises(OSError, match="no role"):
        properties.common(PLUG_IN)["oauth_cb"]("broken")
    assert "the SASL callback 'signer' issued no token: OSError: no role" in caplog.text
