"""Tests of the progress bar and counter of restores."""

import io

from prometheus_client import REGISTRY
from rich.console import Console

from processor.runtime.recovery.job import RestoreBar, RestoreProgress


def shown(*, is_terminal, seconds, term="xterm-256color"):
    """Draw the restores of two processors of the given duration."""
    file = io.StringIO()
    clock = iter(range(0, 1000, seconds))
    bar = RestoreBar(
        Console(file=file, force_terminal=is_terminal, width=100, _environ={"TERM": term}), lambda: next(clock) * 1.0
    )
    for left in (90, 100, 40):
        bar.update("orders", left)
        bar.update("trades", left)
    bar.update("orders", 0)
    bar.update("trades", 10)
    bar.update("trades", 0)
    assert bar._progress is None
    return file.getvalue()


def test_a_terminal_sees_a_bar_of_each_processor_that_restores_for_long():
    """The total of a bar is the largest number of remaining offsets: the topic may grow."""
    drawn = shown(is_terminal=True, seconds=2)
    assert "restoring orders" in drawn
    assert "restoring trades" in drawn
    assert "/100" in drawn


def test_a_short_restore_draws_no_bar():
    """Most restarts restore little."""
    file = io.StringIO()
    bar = RestoreBar(Console(file=file, force_terminal=True), lambda: 0.0)
    for left in (5, 3, 0):
        bar.update("orders", left)
    assert file.getvalue() == ""


def test_without_a_terminal_there_are_log_lines_only():
    """A bar would fill a file with escape sequences."""
    assert shown(is_terminal=False, seconds=2) == ""


def test_a_dumb_terminal_gets_log_lines_only():
    """A terminal without cursor movement would get an empty line for each step of a bar."""
    assert shown(is_terminal=True, seconds=2, term="dumb") == ""


def test_restored_records_are_counted():
    """The rate of the counter is the rate of the restore."""
    progress = RestoreProgress("counted", RestoreBar(Console(file=io.StringIO())))
    progress.took(5)
    progress.took(7)
    assert REGISTRY.get_sample_value("sowstream_restored_records_total", {"processor": "counted"}) == 12
