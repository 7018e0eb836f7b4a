"""A SASL callback of a plug-in: workers and clients log in with tokens that it signs, and renew them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from processor.client import Client
from processor.config import load
from tests.secured import local_signer
from tests.secured.secured_broker import PRINCIPALS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.secured.estate import Estate

pytestmark = [pytest.mark.broker, pytest.mark.long]


@pytest.fixture
def mechanism() -> str:
    """The listener for tokens."""
    return "TOKEN"


def test_a_plug_in_signs_the_tokens_of_every_role(
    estate: Estate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's tokens end and are renewed while it works; publisher, subscriber and queue consumer log in too."""
    site = tmp_path / "site"
    local_signer.install(site)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    key = estate.broker.endpoint.write_key(tmp_path)
    tls = estate.broker.login("TOKEN", "worker")
    login = {name: tls[name] for name in ("bootstrap.servers", "ssl.ca.location")}
    files = {who: estate.with_login(who, login | local_signer.properties(key, who)) for who in PRINCIPALS}
    estate.create_topics()
    estate.grant(estate.printed_acls())
    shared, estate.file = estate.file, files["worker"]
    estate.start("worker", [estate.name])
    estate.file = shared

    with Client("desk", load(files["publisher"])) as desk:
        number = 0
        while number < 10 or local_signer.count(key, "worker") < 12:  # Three clients, each with four tokens.
            assert desk.publish(estate.name, {"id": number, "state": "paid"}, ack="persisted").result(120) is not None
            number += 1
    with Client("reader", load(files["subscriber"])) as reader:
        assert sum(message.data is not None for message in reader.sow(estate.name)) == number
    taken = 0
    with Client("consumer", load(files["consumer"])) as client, client.queue(estate.queue, timeout_s=120) as queue:
        for message in queue:
            message.ack()
            taken += 1
            if taken == number:
                break
    assert taken == number
    assert "issued no token" not in estate.workers[0].log()
