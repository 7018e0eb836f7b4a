"""Measures the processor time of computed fields for a delta: one process, no Kafka, parsed records."""

from __future__ import annotations

import argparse
import time

from processor.builtin.expressions import MessageEnricher

FIELDS = (
    ({"/copy": "/qty"}, "a copied field"),
    ({"/total": "/qty * /px"}, "a product"),
    ({"/was": "PREVIOUS(/px)"}, "the stored value"),
    ({"/note": "IF(/qty > 1, /note, MISSING)"}, "a condition"),
    ({"/total": "/qty * /px", "/was": "PREVIOUS(/px)", "/big": "/qty > 10"}, "three fields"),
)
"""The settings, with their meaning."""


def main() -> None:
    """Print the least processor time of several rounds, in microseconds for a message."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("| fields | | µs |")
    print("|---|---|---|")
    for fields, meaning in FIELDS:
        enrich = MessageEnricher(fields)
        best_s = float("inf")
        for _ in range(arguments.rounds):
            messages = [{"id": 7, "qty": number % 20} for number in range(arguments.messages)]
            previous = {"id": 7, "qty": 1, "px": 2.5, "note": "a", "state": "new", "customer": {"id": 1}}
            began_s = time.process_time()
            for message in messages:
                enrich(message, previous, True)
            best_s = min(best_s, time.process_time() - began_s)
        print(f"| `{fields}` | {meaning} | {best_s / arguments.messages * 1e6:.2f} |", flush=True)


if __name__ == "__main__":
    main()
