"""On a terminal a worker's start is a line for each topic; elsewhere, and with `-v`, its log is unchanged."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from processor.cli import terminal_log
from processor.cli.terminal_log import shorten_log
from processor.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = Config.model_validate({"topics": {"orders": {"partitions": 2}}})


@pytest.fixture
def handler() -> Iterator[logging.Handler]:
    """A handler of the root logger that keeps the records."""
    kept: logging.Handler = logging.NullHandler()
    logging.getLogger().addHandler(kept)
    yield kept
    logging.getLogger().removeHandler(kept)


def passes(handler: logging.Handler, level: int = logging.INFO, **event: Any) -> bool:
    """Return whether an event gets through the handler's filters."""
    return bool(handler.filter(logging.LogRecord("sowstream", level, "", 0, event, None, None)))


def test_a_start_is_a_line_for_each_topic(
    handler: logging.Handler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The events of a start are dropped for one line; warnings, other events and later moves stay."""
    monkeypatch.setattr(terminal_log.sys.stderr, "isatty", lambda: True, raising=False)
    shorten_log(CONFIG, ["orders"])
    for other in set(logging.getLogger().handlers) - {handler}:
        other.filters[:] = [one for one in other.filters if one not in handler.filters]
    start: list[dict[str, Any]] = [
        {"event": "settings"},
        {"event": "assigned", "topic": "orders.publish", "partitions": [0, 1]},
        {"event": "local state opened"},
        {"event": "restored", "topic": "orders.sow", "partition": 0},
    ]
    assert [passes(handler, **event) for event in start] == [False] * 4
    assert capsys.readouterr().err == ""
    assert not passes(handler, event="restored", topic="orders.sow", partition=1)
    assert capsys.readouterr().err.startswith("orders: 2 partitions, ready in ")
    assert passes(handler, event="caught up")
    assert passes(handler, logging.WARNING, event="restored")
    assert passes(handler, event="assigned", topic="orders.publish", partitions=[2])
    assert not passes(handler, event="restored", topic="orders.sow", partition=2)


def test_a_log_for_programs_is_unchanged(handler: logging.Handler) -> None:
    """Without a terminal nothing is dropped."""
    shorten_log(CONFIG, ["orders"])
    assert passes(handler, event="settings")
    assert handler.filters == []
