"""Histories of runs in files, which `python -m tests.programs.faults.histories FILE` judges again.

A history is JSON lines, packed with xz: name, seed and verdict of the run, then one line for each record of a topic,
in order of topic, partition and offset.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.endtoend.oracle import Seen
from tests.programs.faults.checker import Evidence, account

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROLES: Final = ("publish", "sow", "delta", "dlq")
_CODING: Final = ("utf-8", "surrogateescape")
"""Keys and values that are no text keep their bytes as lone surrogates, as in file names of Python."""


def write(file: Path, evidence: Evidence, *, seed: int, guarantee: str, figures: str, wrong: Sequence[str]) -> None:
    """Write a history.

    Args:
        file: its file, new.
        evidence: all records.
        seed: the seed of the scenario.
        guarantee: exactly_once or at_least_once.
        figures: the checker's account.
        wrong: the checker's complaints; none: the verdict is "ok".
    """
    head = {"name": evidence.name, "seed": seed, "guarantee": guarantee, "account": figures, "wrong": [*wrong],
            "versions_grow": True}  # fmt: skip
    with lzma.open(file, "xt", encoding="utf-8") as lines:
        for line in (head, *_rows(evidence)):
            lines.write(json.dumps(line, separators=(",", ":")) + "\n")


def read(file: Path) -> tuple[dict[str, Any], Evidence]:
    """Read a history: its head, and its records."""
    topics: dict[str, list[Seen]] = {role: [] for role in _ROLES}
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        head = json.loads(next(lines))
        for line in lines:
            row = json.loads(line)
            place = row["partition"], row["offset"]
            topics[row["topic"]].append(
                Seen(*place, _bytes(row["key"]), _bytes(row["value"]), row["headers"], row["timestamp_ms"])
            )
    return head, Evidence(head["name"], topics["publish"], topics["sow"], topics["delta"], topics["dlq"])


def main() -> int:
    """Judge histories again; returns 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.faults.histories", description=main.__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="kept by --histories DIR of the suite")
    is_wrong = False
    for file in parser.parse_args().files:
        head, evidence = read(file)
        figures, wrong = account(evidence, guarantee=head["guarantee"], versions_grow=head.get("versions_grow", False))
        is_wrong |= bool(wrong)
        print(f"{file.name}: {'WRONG' if wrong else 'ok'}: {figures}")
        print("".join(f"  {line}\n" for line in wrong), end="")
    return int(is_wrong)


def _rows(evidence: Evidence) -> Iterator[dict[str, Any]]:
    for role, records in zip(_ROLES, (evidence.inputs, evidence.sow, evidence.delta, evidence.dlq), strict=True):
        for seen in records:
            row = seen._asdict()
            yield {"topic": role, **row, "key": _text(seen.key), "value": _text(seen.value)}


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(*_CODING)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode(*_CODING)


if __name__ == "__main__":
    sys.exit(main())
