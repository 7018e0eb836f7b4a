"""Rejects properties of the section `kafka` that contradict the section `runtime`, or are too short for a guarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from processor.config.runtime import RuntimeConfig

_ELSEWHERE = {
    "transaction.timeout.ms": "runtime.transaction_timeout_s",
    "transactional.id": "application_id, which transactional ids begin with",
    "group.instance.id": "runtime.static_membership, which gives each worker one of its own",
    "group.id": "application_id, which consumer groups begin with",
}
"""Properties that would be the same for every client of a process, or that settings of ours already determine."""

_CLASSIC_ONLY = ("session.timeout.ms", "heartbeat.interval.ms")


def check_kafka(kafka: Mapping[str, str], runtime: RuntimeConfig) -> None:
    """Refuse properties that conflict with the settings.

    Raises:
        ValueError: with the property and the remedy.
    """
    for name, instead in _ELSEWHERE.items():
        if name in kafka:
            raise ValueError(f"{name} is not to be set here; set {instead}")
    numbers_ms = {name: _number(kafka, name) for name in (*_CLASSIC_ONLY, "max.poll.interval.ms", "message.timeout.ms")}
    if kafka.get("group.protocol", "classic").lower() == "consumer":
        for name in _CLASSIC_ONLY:
            if name in kafka:
                raise ValueError(f"{name} is the brokers' to say with group.protocol consumer; remove it")
    session_ms = runtime.session_timeout_s * 1000
    if numbers_ms["session.timeout.ms"] not in (None, session_ms):
        raise ValueError("session.timeout.ms is not what runtime.session_timeout_s says; set the latter alone")
    if (heartbeat_ms := numbers_ms["heartbeat.interval.ms"]) is not None and heartbeat_ms * 2 > session_ms:
        raise ValueError("heartbeat.interval.ms must be at most half of runtime.session_timeout_s")
    _check_poll_interval(numbers_ms["max.poll.interval.ms"], runtime)


def _check_poll_interval(interval_ms: int | None, runtime: RuntimeConfig) -> None:
    """Check the poll interval: a turn may wait a transaction's time each for offsets, commit and abort."""
    if interval_ms is None:
        return
    if interval_ms < runtime.session_timeout_s * 1000:
        raise ValueError("max.poll.interval.ms must be at least runtime.session_timeout_s")
    if interval_ms < runtime.transaction_timeout_s * 3000:
        raise ValueError("max.poll.interval.ms must be at least three times runtime.transaction_timeout_s")


def _number(kafka: Mapping[str, str], name: str) -> int | None:
    if name not in kafka:
        return None
    try:
        return int(kafka[name])
    except ValueError:
        raise ValueError(f"{name}: {kafka[name]!r} is not a number of milliseconds") from None
