"""`sowstream doctor`: checks everything that Sowstream needs, and gives advice."""

from __future__ import annotations

import typer

from processor.cli.output import inform, table
from processor.cli.settings import Bootstrap, ConfigFile, StateDir, settings


def doctor(config: ConfigFile = None, bootstrap: Bootstrap = None, state_dir: StateDir = None) -> None:
    """Check versions, broker, topics and state directory; exit with 1 if something would not work."""
    from processor.tools.doctor import examine  # noqa: PLC0415

    findings = examine(settings(config, bootstrap, state_dir))
    table(("", "what", "found", "what to do"), findings)
    failed = sum(finding.level == "fail" for finding in findings)
    if failed:
        inform(f"{failed} of {len(findings)} checks failed.")
        raise typer.Exit(1)
    inform("Nothing stands in the way.")
