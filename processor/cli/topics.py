"""`sowstream topics`: create the Kafka topics the settings need, describe them to readers, and check them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from processor.cli.output import data, table, tell
from processor.cli.settings import Bootstrap, ConfigFile, settings

if TYPE_CHECKING:
    from processor.config import Config
    from processor.kafka.admin import Admin, Cluster
    from processor.topic_problems import Problem
    from processor.topics import TopicSpec

app = typer.Typer(help="Create the Kafka topics that the settings need, or check them.", no_args_is_help=True)


@app.command()
def apply(
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    acls: Annotated[
        bool,
        typer.Option("--acls", help="Print the kafka-acls commands of a secured cluster instead, one for each role."),
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Also remove the descriptions of topics that the settings no longer have, of the same application_id.",
        ),
    ] = False,
) -> None:
    """Create topics that are missing, and print their names. Existing ones are never changed, only checked.

    Each topic of the settings is described in the topic directory, _sowstream.topics: readers that have only Kafka's
    address go by it, and workers refuse to start with settings that contradict it. Only what changed is written.

    Where Kafka has ACLs, --acls prints who needs which; the table is in deploy/README.md. Nobody but its own worker
    writes to a conflated topic.
    """
    tree = settings(config, bootstrap)
    if acls:
        _print_acls(tree)
        return
    admin, specs = _admin_and_specs(tree)
    wanted = [*specs, _directory_spec()]
    created = _create(admin, wanted)
    for name in created:
        data(name)
    tell(f"{len(created)} of {len(wanted)} topics created.")
    cluster = admin.cluster()
    problems = _problems(admin, specs, cluster)
    _describe(tree, admin, refused={problem.topic for problem in problems if problem.severity == "refuse"}, prune=prune)
    _report([*problems, *_directory_problems(tree, admin, cluster)])


@app.command()
def check(config: ConfigFile = None, bootstrap: Bootstrap = None) -> None:
    """Print what is wrong with the topics and what to do about it; exit with 1 if a worker would refuse them.

    The topic directory is compared with the settings, too.
    """
    tree = settings(config, bootstrap)
    admin, specs = _admin_and_specs(tree)
    cluster = admin.cluster()
    wrong = [*_problems(admin, specs, cluster), *_directory_problems(tree, admin, cluster)]
    _report(wrong)
    if not wrong:
        tell(f"{len(specs)} topics are as they should be.")


def _print_acls(config: Config) -> None:
    """Nothing is asked of Kafka, and nothing changed."""
    from processor.cli.acls import commands, grants  # noqa: PLC0415
    from processor.runtime.pipeline import pipelines  # noqa: PLC0415

    for command in commands(grants(config, pipelines(config, [])), config.kafka.get("bootstrap.servers", "HOST:9092")):
        data(command)
    tell(
        "Set WORKER, CONFLATER, PUBLISHER, SUBSCRIBER and DLQ to the names of the principals, and pipe this into a "
        "shell; an admin's credentials go with --command-config. Whoever runs `topics apply` needs Create."
    )


def _admin_and_specs(config: Config) -> tuple[Admin, list[TopicSpec]]:
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.kafka.admin import Admin  # noqa: PLC0415
    from processor.runtime.pipeline import specs  # noqa: PLC0415

    wanted = specs(config)
    if not wanted:
        raise ConfigurationError("the settings name no topics; add a section `topics`, or name another file with -c")
    return Admin(config.kafka), wanted


def _problems(admin: Admin, specs: list[TopicSpec], cluster: Cluster) -> list[Problem]:
    from processor.runtime.topic_check import problems_of  # noqa: PLC0415

    return problems_of(admin, specs, cluster)


def _directory_problems(config: Config, admin: Admin, cluster: Cluster) -> list[Problem]:
    from processor.topic_directory import report  # noqa: PLC0415

    return report(config, admin, cluster)


def _directory_spec() -> TopicSpec:
    from processor.topics import directory_spec  # noqa: PLC0415

    return directory_spec()


def _describe(config: Config, admin: Admin, *, refused: set[str], prune: bool) -> None:
    """Write the descriptions that changed; a topic that workers refuse keeps the description it has."""
    from processor.topic_directory import TopicDirectory, describe, revise  # noqa: PLC0415

    directory = TopicDirectory(config.kafka, admin)
    wanted = describe(config)
    kept = {name for name in wanted if any(topic.startswith(f"{name}.") for topic in refused)}
    revision = revise(config, wanted, directory.read(), kept=kept, prune=prune)
    directory.write(revision.writes)
    for line in revision.lines:
        tell(line)


def _create(admin: Admin, specs: list[TopicSpec]) -> list[str]:
    """Make topics that outlive a broker, where there are others."""
    from processor.topics import copies, durable  # noqa: PLC0415

    brokers = len(admin.cluster().brokers)
    return admin.create(durable(specs, brokers), replication=copies(brokers))


def _report(wrong: list[Problem]) -> None:
    if wrong:
        table(("", "topic", "what is wrong", "what to do"), wrong)
    if refused := sum(problem.severity == "refuse" for problem in wrong):
        tell(f"{refused} problems, {len(wrong) - refused} warnings.")
        raise typer.Exit(1)
    if wrong:
        tell(f"{len(wrong)} warnings.")
