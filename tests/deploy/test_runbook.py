"""The runbook has one entry for each alert, and its commands are those of `sowstream`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.test_commands import accepted
from tests.deploy.test_monitoring import rules

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "deploy" / "RUNBOOK.md").read_text(encoding="utf-8")
VALUES = {"TOPIC": "orders", "VIEW": "totals", "P": "3", "OFFSET": "42", "FILE": "sowstream.yaml"}
"""The values of the runbook's placeholders."""


def entries() -> dict[str, str]:
    """The text of each alert's entry, by the alert."""
    parts = re.split(r"^### (Sowstream\w+)\n", RUNBOOK, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.split("\n## ")[0] for text in parts[2::2]), strict=True))


def commands() -> list[str]:
    """Every command line of the runbook."""
    inline = re.findall(r"`(sowstream [^`]+)`", RUNBOOK)
    in_pods = re.findall(r"^kubectl exec .* -- (sowstream .+)$", RUNBOOK, re.MULTILINE)
    return sorted({*inline, *in_pods})


def test_every_alert_has_one_entry_and_every_entry_an_alert() -> None:
    """Alerts and entries have the same names, in which no entry is there twice."""
    alerts = [rule["alert"] for rule in rules()]
    assert len(alerts) == len(set(alerts))
    assert sorted(re.findall(r"^### (\w+)$", RUNBOOK, re.MULTILINE)) == sorted(alerts)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_leads_to_its_entry(rule: dict[str, object]) -> None:
    """The address in an alert is that of its heading, and the entry says where to look and what to do."""
    alert = str(rule["alert"])
    annotations = rule["annotations"]
    assert isinstance(annotations, dict)
    assert annotations["runbook_url"] == f"deploy/RUNBOOK.md#{alert.lower()}"
    assert annotations["summary"]
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    entry = entries()[alert]
    assert [mark for mark in ("- **Look:** ", "- **Do:** ") if entry.count(mark) != 1] == []


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_runbook_is_accepted(command: str) -> None:
    """A command that someone copies at night parses, with a value for each placeholder."""
    words = [VALUES.get(word, word) for word in command.split()[1:]]
    assert accepted(words) is not None


def test_links_within_the_runbook_lead_to_headings() -> None:
    """A link to another entry has the address that GitHub gives its heading."""
    headings = {
        re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", RUNBOOK, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", RUNBOOK)) <= headings
