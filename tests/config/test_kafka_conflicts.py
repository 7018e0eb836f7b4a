"""Kafka properties that contradict Sowstream's settings are reported, and not silently replaced."""

import pytest

from processor.config import load
from processor.errors import ConfigurationError


def config(tmp_path, kafka, **runtime):
    """The settings of a file with these two sections."""
    file = tmp_path / "sowstream.yaml"
    file.write_text(f"kafka: {kafka}\nruntime: {runtime}\n")
    return load(file)


@pytest.mark.parametrize(
    ("kafka", "problem"),
    [
        ("{transaction.timeout.ms: 5000}", "set runtime.transaction_timeout_s"),
        ("{group.instance.id: a}", "set runtime.static_membership"),
        ("{transactional.id: a}", "set application_id"),
        ("{session.timeout.ms: 6000}", "is not what runtime.session_timeout_s says"),
        ("{heartbeat.interval.ms: 11000}", "at most half of runtime.session_timeout_s"),
        ("{max.poll.interval.ms: 9000}", "at least runtime.session_timeout_s"),
        ("{max.poll.interval.ms: 29000}", "at least three times runtime.transaction_timeout_s"),
        ("{max.poll.interval.ms: soon}", "'soon' is not a number of milliseconds"),
        ("{group.protocol: consumer, session.timeout.ms: 20000}", "the brokers' to say"),
        ("{group.protocol: consumer, heartbeat.interval.ms: 1000}", "the brokers' to say"),
    ],
)
def test_a_contradicting_property_is_refused_with_the_setting(tmp_path, kafka, problem):
    """A contradicting property is refused at the start, with the setting to use instead."""
    with pytest.raises(ConfigurationError, match="kafka: ") as caught:
        config(tmp_path, kafka)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "kafka",
    [
        "{session.timeout.ms: 20000, heartbeat.interval.ms: 3000}",
        "{max.poll.interval.ms: 30000}",
        "{message.timeout.ms: 300000}",
        "{group.protocol: consumer, group.remote.assignor: range}",
    ],
)
def test_a_property_that_agrees_is_accepted(tmp_path, kafka):
    """A property that agrees with the settings, or concerns other clients than workers, is accepted."""
    assert config(tmp_path, kafka).kafka


def test_a_transaction_outlasts_two_commits_and_a_watchdog_three_transactions(tmp_path):
    """A transaction outlasts two commits, and a watchdog outlasts three transactions."""
    with pytest.raises(ConfigurationError, match="commit_interval_s must be at most half of transaction_timeout_s"):
        config(tmp_path, "{}", commit_interval_s=3, transaction_timeout_s=5)
    with pytest.raises(ConfigurationError, match="stuck_timeout_s must be at least three times transaction_timeout_s"):
        config(tmp_path, "{}", stuck_timeout_s=40, transaction_timeout_s=20)


@pytest.mark.parametrize(("transaction_timeout_s", "stuck_after_s"), [(10, 120), (60, 180)])
def test_a_watchdog_without_a_setting_outlasts_three_transactions(tmp_path, transaction_timeout_s, stuck_after_s):
    """A watchdog without a time of its own outlasts three transactions of any length."""
    assert config(tmp_path, "{}", transaction_timeout_s=transaction_timeout_s).runtime.stuck_after_s == stuck_after_s
