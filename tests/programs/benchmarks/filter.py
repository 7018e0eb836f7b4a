"""Measures how many records a second a filter matches: one process, no Kafka, records as a codec decodes them."""

from __future__ import annotations

import argparse
import random
import time

from processor.filter import compile_filter

FILTERS = (
    ("/symbol = 'X' AND /qty > 10", "simple"),
    ("/qty > 10", "one comparison"),
    ("/symbol IN ('A', 'B', 'C', 'D', 'E', 'F', 'G', 'X')", "looked up"),
    ("/customer/country = 'CH' OR /qty BETWEEN 5 AND 8", "a path of two steps"),
    ("/text_qty > 10", "a number that is a text, as in FIX"),
    ("/note LIKE '^urgent'", "decided without the engine"),
    ("/note LIKE '(?i)urg[ae]nt'", "a regular expression"),
    ("/state = 'new' AND /inventory IS NULL AND /credit IS NULL", "three predicates"),
    ("/legs/px > 14", "any element"),
    ("UPPER(/symbol) = 'X'", "a function"),
    ("/qty * /px > 100", "arithmetic"),
)
"""The filters, with the features that they use."""

RECORDS = 10_000
"""Number of different records: more than fit into a processor's nearest cache, as in a worker."""


def main() -> None:
    """Print a table of the best rounds, as other processes may use the machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=1_000_000, help="of each filter, in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    records = [_record(random.Random(arguments.seed + number)) for number in range(RECORDS)]
    repeats = max(1, arguments.evaluations // RECORDS)
    print("| filter | | evaluations/s | matching |")
    print("|---|---|---|---|")
    for text, meaning in FILTERS:
        matches = compile_filter(text).matches
        best_s, matching = float("inf"), 0
        for _ in range(arguments.rounds):
            started = time.perf_counter()
            for _ in range(repeats):
                matching = sum([matches(record) for record in records])
            best_s = min(best_s, time.perf_counter() - started)
        print(f"| `{text}` | {meaning} | {repeats * RECORDS / best_s:,.0f} | {matching / RECORDS:.0%} |", flush=True)


def _record(rng: random.Random) -> dict[str, object]:
    quantity = rng.randint(1, 20)
    return {
        "id": rng.randint(1, 10**6),
        "symbol": rng.choice(["X", "A", "Y", "Z"]),
        "state": rng.choice(["new", "held", "done"]),
        "qty": quantity,
        "px": rng.uniform(1, 20),
        "text_qty": str(quantity),
        "note": rng.choice(["urgent: call back", "call back, it is urgent", "-"]),
        "customer": {"id": 7, "country": rng.choice(["CH", "AT", "DE"])},
        "legs": [{"px": rng.randint(1, 15)} for _ in range(3)],
    }


if __name__ == "__main__":
    main()
