"""Runs the fault suite: `make program NAME=faults ARGS="--seed 7 --only kill"`."""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from processor.trial.broker import EmbeddedBroker
from tests.programs.faults.broker.broker import AtFault
from tests.programs.faults.registry import SCENARIOS, Outcome, table, write
from tests.programs.faults.scenario import Scenario, Stage, TooSlow
from tests.programs.harness import print_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRIES_MAX = 3


def main() -> int:
    """Run the chosen scenarios one after the other and print the table; returns 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="what is random follows from it")
    parser.add_argument("--only", metavar="WORD", action="append", default=[], help="those with this in their name")
    parser.add_argument("--short", action="store_true", help="the same on less")
    parser.add_argument("--keep", action="store_true", help="keep directories and logs")
    parser.add_argument("--histories", metavar="DIR", type=Path, help="keep the records of each run and its verdict")
    parser.add_argument("--readme", action="store_true", help="put the outcomes into the table of the README")
    parser.add_argument("--list", action="store_true", help="say what there is")
    arguments = parser.parse_args()
    for word in arguments.only:
        if not any(word in one.name for one in SCENARIOS):
            parser.error(f"no scenario has {word!r} in its name; --list says which there are")
    if arguments.readme and arguments.short:
        parser.error("the README's table is of whole runs, not of --short")
    chosen = choose(arguments.only, with_extra=arguments.list)
    if arguments.list:
        for scenario in chosen:
            extra = "; only if asked for" if scenario.is_extra else ""
            print(f"{scenario.name:<20} {scenario.what} (at most {scenario.limit_s:g} s{extra})")
        return 0
    print_progress(f"seed {arguments.seed}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Workers and brokers end with this process.
    directory = Path(tempfile.mkdtemp(prefix="sowstream-faults-"))
    outcomes = []
    try:
        with EmbeddedBroker(start_timeout_s=300) as broker:
            for number, scenario in enumerate(chosen, 1):
                print_progress(f"{number} of {len(chosen)}: {scenario.name}: {scenario.what}")
                place = directory / scenario.name
                outcomes.append(
                    play(
                        scenario,
                        place,
                        seed=arguments.seed,
                        bootstrap=broker.bootstrap,
                        short=arguments.short,
                        histories=arguments.histories and arguments.histories / scenario.name,
                    )
                )
                if outcomes[-1].failure is None and not arguments.keep:
                    shutil.rmtree(place)
    finally:
        if arguments.keep or any(outcome.failure for outcome in outcomes):
            print_progress(f"settings, states and logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(table(outcomes))
    if arguments.readme:
        write(SCENARIOS, outcomes)
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def choose(words: Sequence[str], *, with_extra: bool = False) -> list[Scenario]:
    """The scenarios whose names contain one of the words; without words, all but those that run only by name.

    Args:
        words: the words of `--only`.
        with_extra: whether a call without words includes the scenarios that otherwise run only by name.
    """
    if words:
        return [one for one in SCENARIOS if any(word in one.name for word in words)]
    return [one for one in SCENARIOS if with_extra or not one.is_extra]


def play(
    scenario: Scenario,
    directory: Path,
    *,
    seed: int,
    bootstrap: str,
    short: bool = False,
    histories: Path | None = None,
) -> Outcome:
    """Run one scenario, and repeat it within its limit of tries if the broker itself violated its guarantees."""
    for spoiled in range(_TRIES_MAX):
        place = directory / f"try-{spoiled + 1}"
        place.mkdir(parents=True)
        stage = Stage(seed + spoiled, place, print_progress, bootstrap, histories=histories, is_short=short)
        failure = None
        is_spoiled = False
        try:
            with stage:
                scenario.run(stage)
            if stage.elapsed_s > scenario.limit_s:
                raise TooSlow(f"{stage.elapsed_s:.0f} s; it may take {scenario.limit_s:g}")
        except Exception as error:  # noqa: BLE001 - the others are to be run all the same.
            failure = f"{type(error).__name__}: {error}"
            is_spoiled = isinstance(error, AtFault)
            traceback.print_exc()
        print_progress(f"  {'ok' if failure is None else 'FAILED'} in {stage.elapsed_s:.0f} s")
        if not is_spoiled:
            break
        print_progress("  the broker left a transaction open by itself (KAFKA-20734): that says nothing of the workers")
    return Outcome(scenario, stage.runs, stage.records, failure, stage.elapsed_s, spoiled)


if __name__ == "__main__":
    sys.exit(main())
