"""The audit of what does not go well: rows and records that are set aside, inputs that come late, a job that fails."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from tests.programs.pipeline.checks import CHECKS, Check, compare, merged, state_of
from tests.programs.pipeline.evidence import Misfit
from tests.programs.pipeline.layout import BROKEN, GROUPS
from tests.programs.pipeline.rows import COLUMNS, fits

if TYPE_CHECKING:
    from tests.programs.faults.examine import Complaints
    from tests.programs.pipeline.evidence import Evidence


def notes_are_lines(evidence: Evidence, complaints: Complaints) -> str:
    """Each good row of the CSV files is the record of its id, with the line breaks of its note."""
    notes = evidence.ledger.notes
    wanted = {str(key): {"id": key} if note is None else {"id": key, "note": note} for key, note in notes.items()}
    actual = {key: record for key, (_, record) in state_of(evidence.of("sow", evidence.notes)).items()}
    compare("of the notes", actual, wanted, complaints)
    breaks = sum(note is not None and "\n" in note for note in notes.values())
    return f"{merged(evidence, evidence.notes, complaints)}; {breaks:,} notes of several lines"


def counts_are_notes(evidence: Evidence, complaints: Complaints) -> str:
    """The number of rows of each note is published, and that of rows without one was set aside when it changed."""
    lines = Counter(evidence.ledger.notes.values())
    wanted = {note: {"id": note, "lines": count} for note, count in lines.items() if note is not None}
    actual = {key: record for key, (_, record) in state_of(evidence.of("sow", evidence.counts)).items()}
    compare("of the numbers by note", actual, wanted, complaints)
    keyless = [row["lines"] for row in evidence.keyless if row.get("id") is None]
    if len(keyless) < len(evidence.keyless):
        complaints.add("set aside with a key", f"{len(evidence.keyless) - len(keyless)} rows")
    if len(set(keyless)) < len(keyless):
        complaints.add("set aside without a change", f"{sorted(keyless)!r:.200}")
    if max(keyless, default=0) != lines[None]:
        complaints.add("not set aside", f"the group without a key: {lines[None]}, and not {keyless!r:.200}")
    return f"{len(wanted)} groups, and {len(keyless)} states of the one without a key"


def typed_is_fold(evidence: Evidence, complaints: Complaints) -> str:
    """The table with columns has the last record of each key that fits, and each other record was set aside once."""
    wanted: dict[str, dict[str, Any]] = {}
    bad: set[Misfit] = set()
    for one in evidence.of("sow"):
        key = (one.key or b"").decode()
        record = None if one.value is None else json.loads(one.value)
        if record is None:
            wanted.pop(key, None)
        elif fits(record):
            wanted[key] = {name: record.get(name) for name in COLUMNS}
        else:
            bad.add(Misfit(one.partition, one.offset, key))
    actual = {str(row["id"]): {name: row[name] for name in COLUMNS} for row in evidence.typed}
    if len(actual) < len(evidence.typed):
        complaints.add("two rows of a key in the table", f"{len(evidence.typed) - len(actual)} rows")
    compare("in the table with columns", actual, wanted, complaints)
    _set_aside(evidence.typed_misfits, wanted=bad, bad=bad, complaints=complaints)
    return f"{len(wanted):,} rows, {len(bad):,} records set aside"


def misfits_of_features(evidence: Evidence, complaints: Complaints) -> str:
    """Each record that does not fit at the end was set aside once, and no record that fits ever was."""
    last = {one.key: one for one in evidence.of("sow")}
    bad = {place for one in evidence.of("sow") if (place := _misfit(one)) is not None}
    wanted = {place for one in last.values() if (place := _misfit(one)) is not None}
    _set_aside(evidence.depth_misfits, wanted=wanted, bad=bad, complaints=complaints)
    return f"{len(wanted):,} at the end, {len(evidence.depth_misfits):,} set aside meanwhile"


def failing_job_alone(evidence: Evidence, complaints: Complaints) -> str:
    """The job that always fails is tried again and publishes nothing, and the others complete micro-batches."""
    work = evidence.work
    if work[BROKEN].failures < 2:
        complaints.add("not tried again", f"{BROKEN}: {work[BROKEN].failures} failures")
    figures = [f"{work[BROKEN].failures} failures"]
    for job in (job for jobs in GROUPS.values() if BROKEN in jobs for job in jobs):
        commits_s = work[job].commits_s
        if bool(commits_s) is (job == BROKEN):
            complaints.add("an unexpected number of micro-batches", f"{job}: {len(commits_s)}")
        pauses_s = [after - before for before, after in pairwise(commits_s)]
        if pauses_s:
            figures.append(f"{job} every {statistics.median(pauses_s):.1f} s, at most {max(pauses_s):.0f}")
    return ", ".join(figures)


ALL: Final = (
    *CHECKS,
    Check("notes", "each CSV row with its line breaks merged once", notes_are_lines),
    Check("no-key", "numbers by note published, the NULL group set aside", counts_are_notes),
    Check("typed", "typed table = last records that fit, each misfit set aside once", typed_is_fold),
    Check("misfits", "misfits in the features' source set aside once", misfits_of_features),
    Check("failing", "a job that always fails is tried again, beside the others", failing_job_alone),
)
"""All checks, in the order of the table."""


def _misfit(one: Any) -> Misfit | None:
    """The place of a record of the SOW topic that does not fit; None: it does, or is deleted."""
    if one.value is None or fits(json.loads(one.value)):
        return None
    return Misfit(one.partition, one.offset, (one.key or b"").decode())


def _set_aside(misfits: list[Misfit], *, wanted: set[Misfit], bad: set[Misfit], complaints: Complaints) -> None:
    """Check that each wanted record was set aside, none of them twice, and none that fits."""
    for misfit, count in Counter(misfits).items():
        if count > 1:
            complaints.add("set aside more than once", f"{misfit}: {count}")
    for misfit in wanted - {*misfits}:
        complaints.add("not set aside", f"{misfit}")
    for misfit in {*misfits} - bad:
        complaints.add("set aside, but it fits", f"{misfit}")
