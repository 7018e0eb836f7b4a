"""`sowstream check`, `doctor` and `plugins`: check the settings, the whole installation, and the installed plug-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from processor.cli.output import AsJson, data, inform, table
from processor.cli.shared_options import Bootstrap, ConfigFile, StateDir, settings
from processor.errors import counted


def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Settings.  \\[default: ./sowstream.yaml]")
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of the settings instead, for an editor.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a settings file without Kafka; exit with 2 if a worker would refuse it.

    Checked are the names and values of all settings, plug-ins and their settings, merge rules, filters, expressions,
    underlying topics and schema files. A schema in a registry is not fetched.
    """
    if schema:
        from processor.config.json_schema import schema_text  # noqa: PLC0415

        data(schema_text())
        return
    from processor.config import load  # noqa: PLC0415
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.installation.settings_check import check_offline  # noqa: PLC0415

    config = load(file or Path("sowstream.yaml"), file_argument="sowstream check FILE")
    report = check_offline(config)
    if not report.topics:
        raise ConfigurationError(config.no_topics)
    table(("topic", "what is wrong"), report.problems, names=("topic", "problem") if as_json else ())
    for topic, reason in report.unchecked:
        inform(f"{topic}: not checked: {reason}")
    if report.problems:
        inform(f"{counted(len(report.problems), 'problem')} in {file or 'sowstream.yaml'}.")
        raise typer.Exit(2)
    inform(f"{counted(len(report.topics), 'topic')} can be used.")


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
    from processor.operate.doctor import examine  # noqa: PLC0415

    findings = examine(settings(config, bootstrap, state_dir), role)
    table(
        ("", "what", "found", "what to do"), findings, names=("level", "subject", "found", "to_do") if as_json else ()
    )
    failed = sum(finding.level == "fail" for finding in findings)
    if failed:
        inform(f"{failed} of {len(findings)} checks failed.")
        raise typer.Exit(1)
    inform("Nothing stands in the way.")


GROUPS = (
    "sowstream.processors",
    "sowstream.codecs",
    "sowstream.preprocessors",
    "sowstream.enrichers",
    "sowstream.merge_rules",
    "sowstream.functions",
    "sowstream.sasl_callbacks",
)


def plugins(as_json: AsJson = False) -> None:
    """Print the installed plug-ins: entry-point group, name, location, and whether each can be used."""
    from importlib.metadata import entry_points  # noqa: PLC0415

    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.hosting.plugins import GROUP as PROCESSORS  # noqa: PLC0415
    from processor.hosting.plugins import load_processor  # noqa: PLC0415

    rows = []
    for group in GROUPS:
        for point in sorted(entry_points(group=group), key=lambda point: point.name):
            try:
                if group == PROCESSORS:
                    load_processor(point)
                else:
                    point.load()
            except ConfigurationError as error:
                state = str(error)
            except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
                state = f"cannot be loaded: {error}"
            else:
                state = "ok"
            package = point.dist.name if point.dist is not None else "?"
            rows.append((group, point.name, point.value, package, state))
    columns = ("group", "name", "object", "package", "state")
    table(columns, rows, names=columns if as_json else ())
