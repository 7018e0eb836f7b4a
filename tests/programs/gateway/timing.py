"""The time of answers about hidden records and about none: interleaved requests, and the difference of their means.

::

    python -m tests.programs.gateway.timing --samples 10000
"""

from __future__ import annotations

import argparse
import http.client
import json
import logging
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from tests.gateway.memory import RIGHTS, Guarded

CONNECTIONS = 20
KEYS = range(1_000, 1_200)
"""The keys of hidden records."""
EDITOR = {"read": "/desk = 'x'", "publish": "/desk = 'x'", "delete": True}
REQUESTS: dict[str, Callable[[int], tuple[str, str, str]]] = {
    "get": lambda key: ("GET", f"records/{key}", ""),
    "delta": lambda key: ("POST", "delta_publish", json.dumps({"id": key, "qty": 1})),
    "delete": lambda key: ("POST", f"sow_delete?key={key}", ""),
}
"""Each with method, path and body; a delta of this kind may not be published for any record."""


def measure(guarded: Guarded, name: str, samples: int, seed: int) -> str:
    """Send requests for hidden records and for none in random order, and return a sentence about their times."""
    times_s: dict[str, list[float]] = {"hidden": [], "absent": []}
    request = REQUESTS[name]

    def send(number: int) -> None:
        rng, connection = random.Random(seed + number), http.client.HTTPConnection(guarded.world.gateway.address)
        for _ in range(samples // CONNECTIONS):
            for kind in rng.sample(list(times_s), 2):
                key = rng.choice(KEYS) + (0 if kind == "hidden" else 5_000)
                method, path, body = request(key)
                begun_s = time.perf_counter()
                connection.request(method, f"/v1/topics/orders/{path}", body, {"Authorization": "Bearer t-bob"})
                connection.getresponse().read()
                times_s[kind].append(time.perf_counter() - begun_s)
        connection.close()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hidden, absent = times_s["hidden"], times_s["absent"]
    error_s = (statistics.variance(hidden) / len(hidden) + statistics.variance(absent) / len(absent)) ** 0.5
    difference_s = statistics.mean(hidden) - statistics.mean(absent)
    return (
        f"{name}: {len(hidden):,} each, {statistics.mean(absent) * 1e3:.1f} ms; hidden minus absent "
        f"{difference_s * 1e6:+.0f} µs, standard error {error_s * 1e6:.0f} µs, t = {difference_s / error_s:+.2f}"
    )


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # Each refusal is logged.
    with tempfile.TemporaryDirectory(prefix="sowstream-timing-") as directory:
        guarded = Guarded(Path(directory))
        guarded.write(guarded.rights, {**RIGHTS, "roles": {"desk": {"orders": EDITOR}}})
        guarded.world.gateway.call(guarded.world.gateway.gateway.entitlements.load)
        for key in KEYS:
            guarded.world.put(key, desk="y", note="n" * 1_000)
        for name in REQUESTS:
            print(measure(guarded, name, arguments.samples, arguments.seed), flush=True)
        guarded.world.close()


if __name__ == "__main__":
    main()
