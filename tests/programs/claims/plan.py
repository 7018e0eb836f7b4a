"""The parameters of a run of claims, and the claims that follow from them."""

from __future__ import annotations

import random
from typing import NamedTuple


class Plan(NamedTuple):
    """The parameters of a run."""

    seed: int
    clients: int = 50
    """Clients, each with a connection of its own."""
    processes: int = 5
    """Processes among which the clients are divided."""
    keys: int = 2_000
    """Records to be claimed."""
    rivals: int = 3
    """Clients that claim each record."""
    workers: int = 2
    kills: int = 2
    """Workers that are killed while claims are made."""
    window: int = 50
    """Claims of one client that wait for their outcome."""

    def __str__(self) -> str:
        return (
            f"{self.keys * self.rivals:,} claims of {self.keys:,} keys by {self.clients} clients in {self.processes} "
            f"processes, {self.workers} workers, {self.kills} kills, seed {self.seed}"
        )


def client_name(number: int) -> str:
    """The name of a client."""
    return f"claimant{number}"


def key_name(number: int) -> str:
    """The key of a record."""
    return f"k{number}"


def rivals_of(key: int, clients: int, rivals: int, seed: int) -> list[int]:
    """The clients that claim a key."""
    return random.Random(f"{seed}/{key}").sample(range(clients), rivals)


def claims_of(client: int, clients: int, keys: int, rivals: int, seed: int) -> list[int]:
    """The keys that a client claims, in the order that all clients have: so rivals meet at about the same time."""
    return [key for key in range(keys) if client in rivals_of(key, clients, rivals, seed)]
