"""Each right, each command, each state of a record, each way to send it: the outcome is what an oracle says.

The oracle is plain Python and uses nothing of the product. For each combination three things are compared: the outcome,
the record afterwards, and, for a record that the user may not read, the text of the answer with that for no record::

    python -m tests.programs.gateway.commands            # all combinations, over four ways
    python -m tests.programs.gateway.commands --holes    # the same with holes in the product, each of which it finds
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
import yaml

from tests.gateway.memory import MemoryWorld
from tests.programs.gateway.command_cases import (
    COMMANDS,
    GRANTS,
    MOVED,
    STATES,
    Case,
    Record,
    cases,
    expected,
    state_of,
)
from tests.programs.gateway.command_holes import holes
from tests.programs.gateway.command_ways import SEND, WAYS, Answer


@contextmanager
def world_of(directory: Path, some: list[Case]) -> Iterator[MemoryWorld]:
    """A gateway with a user for each grant and a record for each case; its view lacks the last update of some."""
    tokens = {f"t-{name}": {"user": "someone", "roles": [name]} for name in GRANTS}
    rights = {"roles": {name: {"orders": one.file} for name, one in GRANTS.items() if one.file is not None}}
    (directory / "tokens.yaml").write_text(yaml.safe_dump(tokens))
    (directory / "entitlements.yaml").write_text(yaml.safe_dump(rights))
    world = MemoryWorld(
        auth={"tokens_file": directory / "tokens.yaml"},
        entitlements=directory / "entitlements.yaml",
        limits={"publishes_per_s": 1_000_000},
    )
    feed = world.feeds["orders"]

    def fill() -> None:
        for one in some:
            if (record := STATES[one.state]) is not None:
                feed.write(one.key, {"id": one.key, **record})
        feed.fall_behind()
        for one in some:
            if one.state == "x moving":
                feed.write(one.key, {"id": one.key, **MOVED})
        feed.lag, feed.behind = feed.behind, None

    world.gateway.call(fill)
    try:
        yield world
    finally:
        world.close()


def run(some: list[Case]) -> list[str]:
    """Send all of them, and return what was wrong."""
    with (
        tempfile.TemporaryDirectory(prefix="sowstream-commands-") as directory,
        world_of(Path(directory), some) as world,
    ):
        feed = world.feeds["orders"]
        groups: dict[tuple[str, str], list[Case]] = {}
        for one in some:
            groups.setdefault((one.way, one.grant), []).append(one)
        answers: dict[int, Answer] = {}
        catching_up = threading.Timer(1.0, lambda: world.gateway.call(lambda: _catch_up(feed)))
        catching_up.start()
        with ThreadPoolExecutor(8) as pool:
            for pairs in pool.map(lambda group: list(SEND[group[0][0]](world, group[0][1], group[1])), groups.items()):
                answers |= {case.key: answer for case, answer in pairs}
        catching_up.join()
        after = world.gateway.call(lambda: {key: json.loads(one.value) for key, one in feed.records.items()})
    return wrong(some, answers, after)


def _catch_up(feed: Any) -> None:
    feed.behind = feed.lag
    feed.catch_up()


def wrong(some: list[Case], answers: dict[int, Answer], after: dict[bytes, Record]) -> list[str]:
    """Compare answers and records with the oracle, and answers about hidden records with those about none."""
    faults: list[str] = []
    about_none = {(one.way, one.grant, str(one.command)): answers[one.key] for one in some if one.state == "absent"}
    for one in some:
        outcome, record = expected(one)
        answer, stored = answers.get(one.key), after.get(str(one.key).encode())
        if answer is None or answer.outcome != outcome:
            faults.append(f"{one}: {answer}, and not {outcome}")
        elif stored != record:
            faults.append(f"{one}: the record is {stored}, and not {record}")
        before, reads = state_of(one), GRANTS[one.grant].reads
        if answer is None or before is None or (reads is not None and reads(before)) or one.state == "x moving":
            continue  # A record that moves could be seen when the command came.
        same = about_none[one.way, one.grant, str(one.command)]
        if same.outcome == answer.outcome:
            if _compared(one, same) != _compared(one, answer):
                faults.append(f"{one}: {answer.text!r} tells a hidden record from none: {same.text!r}")
        elif answer.outcome != "refused" or "someone may not publish this record to orders" not in answer.text:
            faults.append(f"{one}: {answer.text!r} is not the answer for a record that may not be published")
    return faults


def _compared(one: Case, answer: Answer) -> str:
    """The text that must be equal. Publishes say the version of the record that they made, which cannot be foreseen."""
    is_made = answer.outcome == "done" and one.command.op != "sow_delete"
    return re.sub(r'"version": ?\d+', "", answer.text) if is_made else answer.text


def find_holes(some: list[Case], names: tuple[str, ...] = ()) -> dict[str, int]:
    """The number of wrong cases with each hole; no names: with all of them."""
    found: dict[str, int] = {}
    for name, make in holes().items():
        if names and name not in names:
            continue
        undo = make()
        try:
            found[name] = len(run(some))
        finally:
            undo()
        print(f"{found[name]:>6,} wrong with this hole: {name}", flush=True)
    return found


def report() -> str:
    """Send all combinations, and return a sentence about them.

    Raises:
        AssertionError: some are wrong.
    """
    some = cases(WAYS if shutil.which("node") else WAYS[:3])
    faults = run(some)
    assert not faults, f"{len(faults)} of {len(some):,} are wrong:\n" + "\n".join(faults[:20])
    return f"{len(some):,} combinations of {len(GRANTS)} rights and {len(COMMANDS)} commands: none is wrong"


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--holes", action="store_true", help="make holes in the product, and find them")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))  # Each refusal is logged.
    if arguments.holes:
        sys.exit(0 if all(find_holes(cases(("websocket", "http"))).values()) else 1)
    print(report())


if __name__ == "__main__":
    main()
