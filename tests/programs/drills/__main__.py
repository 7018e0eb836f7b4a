"""Drills for operators on an embedded broker: `make program NAME=drills ARGS=poison_batch`; all without a name."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from processor.trial.broker import EmbeddedBroker
from tests.programs.drills.drill import Drill, DrillFailed
from tests.programs.drills.drills import DRILLS


def main() -> int:
    """Run the drills; returns 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.drills", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="DRILL", help=", ".join(DRILLS))
    names = parser.parse_args().names or list(DRILLS)
    if unknown := set(names) - set(DRILLS):
        parser.error(f"no such drill: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Workers and the broker end with this process.
    rows = []
    with EmbeddedBroker(start_timeout_s=300) as broker, tempfile.TemporaryDirectory(prefix="sowstream-drills-") as base:
        for name in names:
            folder = Path(base) / name
            folder.mkdir()
            with Drill(broker.bootstrap, folder, f"d{uuid.uuid4().hex[:6]}", DRILLS[name].settings) as drill:
                print(f"\n== {name}: {DRILLS[name].calamity}", flush=True)
                try:
                    DRILLS[name].run(drill)
                except (DrillFailed, AssertionError) as error:
                    print(f"FAILED: {error}", flush=True)
                    rows.append((name, "FAILED", "", ""))
                except pytest.skip.Exception as reason:
                    print(f"skipped: {reason}", flush=True)
                    rows.append((name, "skipped", "", ""))
                else:
                    rows.append((name, "ok", f"{drill.noticed_s:.1f}", f"{drill.recovered_s:.1f}"))
    print("\n| drill | verdict | noticed after, s | merging again after the first command, s |\n|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return int(any(row[1] == "FAILED" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
