"""One process of clients that claim: `python -m tests.programs.claims.claimant CONFIG TOPIC FILE VERSIONS …`.

It waits for a line on its standard input, makes its clients' claims, and writes a JSON line for each outcome to FILE.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import TextIO

from processor.client import Ack, Client
from processor.config import load
from processor.errors import SowstreamError, VersionConflict

_PATIENCE_S = 180.0


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


def main() -> None:
    """Make the claims of the given clients, each on a thread of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("topic")
    parser.add_argument("file", type=Path)
    parser.add_argument("versions", type=Path, help="the version of each record, as JSON")
    parser.add_argument("--clients", required=True, help="their numbers, with commas")
    parser.add_argument("--all-clients", type=int, required=True)
    parser.add_argument("--keys", type=int, required=True)
    parser.add_argument("--rivals", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--window", type=int, required=True, help="claims of one client that wait for their outcome")
    arguments = parser.parse_args()
    config = load(arguments.config)
    versions = json.loads(arguments.versions.read_text("utf-8"))
    lock = threading.Lock()
    with contextlib.ExitStack() as cleanup:
        file = cleanup.enter_context(arguments.file.open("w", encoding="utf-8", buffering=1))
        clients = []
        for number in map(int, arguments.clients.split(",")):
            client = cleanup.enter_context(Client(client_name(number), config))
            keys = claims_of(number, arguments.all_clients, arguments.keys, arguments.rivals, arguments.seed)
            clients.append((client, keys))
        print("ready", flush=True)
        sys.stdin.readline()
        threads = [
            threading.Thread(
                target=claim_all, args=(client, arguments.topic, keys, versions, arguments.window, file, lock)
            )
            for client, keys in clients
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def claim_all(
    client: Client,
    topic: str,
    keys: list[int],
    versions: dict[str, int],
    window: int,
    file: TextIO,
    lock: threading.Lock,
) -> None:
    """Claim keys in order, at most `window` at a time, and write each outcome."""
    waiting: deque[tuple[str, Future[Ack]]] = deque()
    for key in map(key_name, keys):
        future = client.delta_publish(topic, {"id": key, "owner": client.name}, expect_version=versions[key])
        assert future is not None
        waiting.append((key, future))
        if len(waiting) >= window:
            _write(client, waiting, file, lock)
    while waiting:
        _write(client, waiting, file, lock)


def _write(client: Client, waiting: deque[tuple[str, Future[Ack]]], file: TextIO, lock: threading.Lock) -> None:
    key, future = waiting.popleft()
    version: int | None = None
    try:
        future.result(_PATIENCE_S)
        outcome = "won"
    except VersionConflict as conflict:
        outcome, version = "lost", conflict.version
    except (SowstreamError, TimeoutError) as error:
        outcome = type(error).__name__
    with lock:
        file.write(json.dumps([key, client.name, outcome, version]) + "\n")


if __name__ == "__main__":
    main()
