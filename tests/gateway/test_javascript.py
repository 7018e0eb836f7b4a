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

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
CLIENT = WEB / "sowstream.js"
BYTES_MAX = 15 * 1024


def test_the_client_in_node():
    """All tests of the JavaScript client pass in Node: the EURUSD story, views, resume, renewed tokens, errors."""
    world = MemoryWorld("orders", "quotes")
    try:
        done = subprocess.run(
            ["node", "--experimental-websocket", "--test", str(Path(__file__).parent / "js" / "client.test.mjs")],
            env={**os.environ, "GATEWAY_URL": f"http://{world.gateway.address}"},
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
    finally:
        world.close()
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"# pass (\d+)", done.stdout)[1]) >= 9


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
