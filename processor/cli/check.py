"""`sowstream check`: checks a settings file without Kafka, and prints the JSON Schema of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from processor.cli.output import AsJson, counted, data, inform, table


def check(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Settings.  \\[default: ./sowstream.yaml]")
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
    from processor.hosting.settings_check import check_offline  # noqa: PLC0415

    config = load(file or Path("sowstream.yaml"))
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
