"""Finds the broken promises of a run of claims, in the outcomes that the clients saw and in the SOW records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

SHOWN_MAX = 5
"""Keys that are listed for each broken promise."""


class Claim(NamedTuple):
    """The outcome of one attempt of one client, as its future reported it."""

    key: str
    """The record that was claimed."""
    client: str
    """The client that claimed it."""
    outcome: str
    """`won`, `lost`, or the name of another error."""
    version: int | None = None
    """Of a lost claim: the version of the record by the ack."""


def broken_promises(
    expected: Mapping[str, Iterable[str]],
    claims: Iterable[Claim],
    records: Mapping[str, tuple[int, Any]],
    begins: Mapping[str, int],
) -> list[str]:
    """A line for each promise that was broken.

    Args:
        expected: the clients that claimed each key.
        claims: the outcomes.
        records: version and value of each SOW record.
        begins: the version of each record before the claims.
    """
    winners: dict[str, list[str]] = {key: [] for key in expected}
    outcomes: Counter[tuple[str, str]] = Counter()
    wrong: dict[str, list[str]] = {}

    def note(promise: str, key: str) -> None:
        wrong.setdefault(promise, []).append(key)

    for claim in claims:
        outcomes[claim.key, claim.client] += 1
        if claim.outcome == "won":
            winners.setdefault(claim.key, []).append(claim.client)
        elif claim.outcome != "lost":
            note(f"claims that ended with {claim.outcome}", claim.key)
        elif claim.version != begins.get(claim.key, 0) + 1:
            note("lost claims whose ack has another version than the winner's", claim.key)
    for key, clients in expected.items():
        for client in clients:
            if outcomes.pop((key, client), 0) != 1:
                note("claims without exactly one outcome", key)
        if len(winners[key]) != 1:
            note("keys without exactly one winner", key)
        version, record = records.get(key, (0, {}))
        if version != begins[key] + 1:
            note("records whose version is not that of one claim", key)
        if [record.get("owner")] != winners[key]:
            note("records with another owner than the winner", key)
    for key, _ in outcomes:
        note("outcomes of claims that were not made", key)
    return [f"{len(keys)} {promise}: {', '.join(keys[:SHOWN_MAX])}" for promise, keys in wrong.items()]
