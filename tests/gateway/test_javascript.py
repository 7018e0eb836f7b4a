"""The JavaScript client in Node, its size and its syntax."""

import gzip
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from processor.gateway.application import WEB
from tests.gateway.memory import MemoryWorld
from tests.gateway.test_digits import RECORD

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
CLIENT = WEB / "sowstream.js"
BYTES_MAX = 15 * 1024


def in_node(file, address, **environment):
    """The number of tests of a file that passed in Node; each of them must pass."""
    done = subprocess.run(
        ["node", "--experimental-websocket", "--test", str(Path(__file__).parent / "js" / file)],
        env={**os.environ, "GATEWAY_URL": address, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(re.search(r"# pass (\d+)", done.stdout)[1])


def test_the_client_in_node():
    """All tests of the JavaScript client pass in Node: the EURUSD story, views, resume, renewed tokens, errors."""
    world = MemoryWorld("orders", "quotes")
    try:
        assert in_node("client.test.mjs", f"http://{world.gateway.address}") >= 9
    finally:
        world.close()


def test_the_client_comes_back_in_node():
    """The client goes on after dead sockets, lost answers and late views, and ends with the reason of a refusal."""
    assert in_node("coming_back.test.mjs", "") >= 15


def test_values_in_node():
    """Numbers have every digit in both directions, and what JSON does not have is refused at the call."""
    world = MemoryWorld("orders", limits={"message_bytes": 10_000})
    try:
        address = f"http://{world.gateway.address}"
        assert in_node("values.test.mjs", address, RECORD=RECORD, MESSAGE_BYTES="10000") >= 7
    finally:
        world.close()


def test_the_page_in_node():
    """The page's windows are complete and in order at each moment; its values, links and hints are as they are said."""
    world = MemoryWorld("orders", "quotes")
    try:
        assert in_node("page.test.mjs", f"http://{world.gateway.address}") >= 9
    finally:
        world.close()


def test_the_client_is_small_and_stands_alone():
    """The client has at most 15 KB compressed, and imports nothing."""
    text = CLIENT.read_text()
    assert len(gzip.compress(text.encode(), 9)) <= BYTES_MAX
    assert not re.search(r"^\s*import\s", text, re.MULTILINE)


def test_each_export_has_a_type():
    """Each export of the client is declared in its types."""
    exports = re.findall(r"^export (?:async )?(?:class|function) (\w+)", CLIENT.read_text(), re.MULTILINE)
    types = (WEB / "sowstream.d.ts").read_text()
    assert exports
    for name in exports:
        assert re.search(rf"^export (?:class|function) {name}\b", types, re.MULTILINE), name
