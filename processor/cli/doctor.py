"""`sowstream doctor`: checks everything that Sowstream needs, and gives advice."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from processor.cli.output import AsJson, inform, table
from processor.cli.settings import Bootstrap, ConfigFile, StateDir, settings


def doctor(
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = None,
    role: Annotated[
        Literal[
            "deployer",
            "worker",
            "conflater",
            "viewer",
            "gateway",
            "publisher",
            "subscriber",
            "consumer",
            "dlq",
            "settler",
        ]
        | None,
        typer.Option("--role", help="Check the rights that this role needs, and nothing that needs more."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check versions, settings, broker, topics and state directory; exit with 1 if something would not work.

    The way to Kafka is checked step by step: name, connection, TLS, login, first request. On a cluster with ACLs, a
    user with the rights of one role names it with --role.
    """
    from processor.tools.doctor import examine  # noqa: PLC0415

    findings = examine(settings(config, bootstrap, state_dir), role)
    table(
        ("", "what", "found", "what to do"), findings, names=("level", "subject", "found", "to_do") if as_json else ()
    )
    failed = sum(finding.level == "fail" for finding in findings)
    if failed:
        inform(f"{failed} of {len(findings)} checks failed.")
        raise typer.Exit(1)
    inform("Nothing stands in the way.")
