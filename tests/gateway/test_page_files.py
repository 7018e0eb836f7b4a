"""The files of the page over HTTP: compressed, not sent again, none from elsewhere, and framed by no other site."""

from __future__ import annotations

import gzip

import pytest

from processor.gateway.application import WEB


def test_a_file_is_sent_compressed_to_those_who_take_it(memory_world):
    """A browser gets a file compressed, and curl as it is."""
    plain = (WEB / "page.js").read_bytes()
    code, headers, body = memory_world.gateway.get("/page.js", {"Accept-Encoding": "gzip, br"})
    assert (code, headers["content-encoding"], headers["vary"]) == (200, "gzip", "Accept-Encoding")
    assert gzip.decompress(body) == plain
    assert len(body) < len(plain) / 2
    code, headers, body = memory_world.gateway.get("/page.js")
    assert (code, headers.get("content-encoding"), body) == (200, None, plain)


def test_a_file_that_a_browser_has_is_not_sent_again(memory_world):
    """A request with the tag of the file is answered with 304, until the file is another one."""
    tag = memory_world.gateway.get("/")[1]["etag"]
    code, headers, body = memory_world.gateway.get("/", {"If-None-Match": tag})
    assert (code, headers["etag"], body) == (304, tag, b"")
    assert memory_world.gateway.get("/page.js", {"If-None-Match": tag})[0] == 200


def test_pages_are_framed_by_their_own_site_alone(memory_world):
    """The panes of a page are frames of its own origin; another site may show none of it."""
    policy = memory_world.gateway.get("/")[1]["content-security-policy"]
    assert "frame-ancestors 'self'" in policy
    assert "unsafe-eval'" not in policy.replace("'wasm-unsafe-eval'", "")


@pytest.mark.parametrize("path", ["/../gateway.py", "/%2e%2e/gateway.py", "/adapters/", "/nosuch.js", "/%00.js"])
def test_nothing_else_is_served(memory_world, path):
    """Files of other folders, folders, and names that no file can have are not found."""
    assert memory_world.gateway.get(path)[0] == 404
