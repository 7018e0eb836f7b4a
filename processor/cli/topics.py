"""`sowstream topics`, which creates the Kafka topics of the settings and checks them, and `sowstream reshard`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from processor.cli.output import AsJson, data, inform, records_read, table
from processor.cli.shared_options import Bootstrap, ConfigFile, TopicArgument, settings
from processor.errors import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from processor.config import Config
    from processor.kafka.admin.admin import Admin
    from processor.kafka.admin.connection import Cluster
    from processor.topics import Problem
    from processor.topics.family import TopicSpec

app = typer.Typer(help="Create the Kafka topics that the settings need, or check them.", no_args_is_help=True)


@app.command()
def apply(
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    acls: Annotated[
        bool,
        typer.Option("--acls", help="Print the kafka-acls commands of a secured cluster instead, one for each role."),
    ] = False,
    grant: Annotated[
        list[str] | None,
        typer.Option(
            "--grant",
            metavar="ROLE=USER",
            help="Grant the rights of a role, such as worker, to a user instead; may be repeated.",
        ),
    ] = None,
    strimzi: Annotated[
        str | None,
        typer.Option(
            "--strimzi",
            metavar="CLUSTER",
            help="Print the KafkaTopic and KafkaUser objects of a Kafka that Strimzi runs instead.",
        ),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Also remove the descriptions of topics that the settings no longer have, of the same application_id.",
        ),
    ] = False,
) -> None:
    """Create missing topics, and print their names. Existing ones are never changed, only checked.

    Each topic of the settings is described in the topic directory, _sowstream.topics: readers that have only Kafka's
    address use it, and workers refuse to start with settings that contradict it. Only changed descriptions are written.
    A topic with records keeps its key and its format: other ones are refused, with the way out. _sowstream.control
    carries the notices of held partitions, and the orders of `sowstream resume`. The settings of queues' share groups,
    which the brokers keep, are set where they differ.

    Where Kafka has ACLs, --acls prints the rights of each role; the table is in deploy/README.md. Only its own worker
    writes to a conflated topic or a view. --grant grants them, and prints those that were missing; the user of the
    settings needs the right to do so, Alter on the cluster. --strimzi prints topics and rights as objects for Strimzi's
    operators; run `topics apply` after them, for what Kubernetes does not keep: the topic directory and the queues'
    settings.
    """
    tree = settings(config, bootstrap)
    if strimzi is not None or acls or grant:
        from processor.cli.acls import grant_rights, print_commands, print_objects  # noqa: PLC0415

        if grant:
            grant_rights(tree, grant)
        elif strimzi is not None:
            print_objects(tree, [*_specs(tree), *_own_specs(tree)], strimzi)
        else:
            print_commands(tree)
        return
    _report(apply_settings(tree, data, inform, prune=prune))


def apply_settings(
    config: Config, show_created: Callable[[str], None], tell: Callable[[str], None], *, prune: bool = False
) -> list[Problem]:
    """Create the missing topics of the settings, and describe them; returns the problems of those that exist.

    Args:
        config: the settings.
        show_created: called with the name of each new topic.
        tell: called with a sentence for each other step.
        prune: remove descriptions of topics that the settings no longer have.

    Raises:
        ConfigurationError: the settings name no topics, or Kafka refuses the user.
        BrokerUnavailable: Kafka does not answer.
    """
    from processor.installation.directory_comparison import DescribedRecords, revise  # noqa: PLC0415
    from processor.installation.topic_check import problems_of  # noqa: PLC0415
    from processor.installation.topic_directory import TopicDirectory  # noqa: PLC0415
    from processor.kafka.admin.admin import Admin  # noqa: PLC0415
    from processor.queues.share_groups import set_share_groups, share_group_problems  # noqa: PLC0415
    from processor.wire.topic_description import describe  # noqa: PLC0415

    specs, admin = _specs(config), Admin(config.kafka, config.connect_timeout_s)
    directory = TopicDirectory(config.kafka, admin, prefix=config.topic_prefix)
    entries = directory.read()
    records = None if entries is None else DescribedRecords(config, admin, entries)
    kept = {} if records is None else {name: why for name in config.names if (why := records.settling(name))}
    all_specs = [*(spec for spec in specs if spec.family not in kept), *_own_specs(config)]
    created = admin.create(all_specs)
    for name in created:
        show_created(name)
    tell(f"{len(created)} of {len(all_specs)} topics created.")
    cluster = admin.cluster()
    problems = problems_of(admin, specs, cluster)
    refused = {problem.topic for problem in problems if problem.severity == "refuse"}
    kept |= {spec.family: "its Kafka topics are not as the settings say" for spec in specs if spec.name in refused}
    for group, names in set_share_groups(config).items():
        tell(f"Share group {group}: {', '.join(names)} set.")
    revision = revise(config, describe(config), entries, kept=kept, prune=prune)
    directory.write(revision.writes)
    for line in revision.lines:
        tell(line)
    return [*problems, *share_group_problems(config), *_shared_problems(config, admin, cluster)]


@app.command()
def check(
    keys: Annotated[
        bool,
        typer.Option("--keys", help="Look at the keys of all records, and not at the newest 50,000 of each topic."),
    ] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    as_json: AsJson = False,
) -> None:
    """Print the problems of the topics with advice; exit with 1 if a worker would refuse them.

    The topic directory is compared with the settings. The keys of SOW topics are checked: each belongs to the one
    partition that Java's hash selects.
    """
    from processor.installation.topic_check import problems_of  # noqa: PLC0415
    from processor.kafka.admin.admin import Admin  # noqa: PLC0415
    from processor.queues.share_groups import share_group_problems  # noqa: PLC0415

    tree = settings(config, bootstrap)
    specs, admin = _specs(tree), Admin(tree.kafka, tree.connect_timeout_s)
    cluster = admin.cluster()
    wrong = [*problems_of(admin, specs, cluster), *_shared_problems(tree, admin, cluster), *share_group_problems(tree)]
    wrong += _key_problems(tree, admin, reads_all=keys)
    _report(wrong, as_json=as_json)
    if not wrong:
        inform(f"{len(specs)} topics are as they should be.")


@app.command()
def heal(
    topic: TopicArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="Longest wait for a worker that makes no progress.")
    ] = 60.0,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Move each key of a SOW topic to its own partition; exit with 1 if one is left elsewhere.

    A key is in two partitions after a producer used another partitioner than Java's. The record with the newer
    timestamp stays, on a tie the one in the key's own partition; the others are deleted. It is done by commands to the
    input topic, so the workers of the topic must be running; they go on with their other work. For each key, a line is
    printed with the changes, and at the end the joins over the topic that are to be rebuilt.
    """
    from processor.repair.heal import Heal, joins_over  # noqa: PLC0415

    tree = settings(config, bootstrap)
    with (
        records_read("looking at keys") as on_read,
        Heal(tree, topic, timeout_s=timeout, show=data, on_read=on_read) as healing,
    ):
        healed = healing.run(dry_run=dry_run)
    more = " There are more: memory is for so many at a time." if dry_run and healed.has_more else ""
    if dry_run:
        inform(f"{counted(healed.keys, 'key')} of {topic} would be healed.{more}")
        raise typer.Exit(1 if healed.keys else 0)
    for key, problem in healed.problems.items():
        inform(f"{key}: not healed: {problem}")
    inform(f"{counted(healed.keys - len(healed.problems), 'key')} of {topic} healed, {len(healed.problems):,} left.")
    if healed.keys and (joins := joins_over(tree, topic)):
        inform(
            f"Joins may lack rows of these keys. Stop the workers of each and run `sowstream view rebuild NAME`: "
            f"{', '.join(joins)}."
        )
    if healed.problems:
        raise typer.Exit(1)


def _specs(config: Config) -> list[TopicSpec]:
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.installation.configured_pipelines import specs  # noqa: PLC0415

    topic_specs = specs(config)
    if not topic_specs:
        raise ConfigurationError(config.no_topics)
    return topic_specs


def _shared_problems(config: Config, admin: Admin, cluster: Cluster) -> list[Problem]:
    """The problems of the topics that all families of an installation share."""
    from processor.installation.directory_comparison import report  # noqa: PLC0415
    from processor.installation.topic_check import control_report  # noqa: PLC0415

    return [*report(config, admin, cluster), *control_report(config, admin, cluster)]


def _key_problems(config: Config, admin: Admin, *, reads_all: bool) -> list[Problem]:
    """The problem of keys in wrong partitions; a topic that cannot be read is a problem of its own."""
    from processor.errors import Stop  # noqa: PLC0415
    from processor.repair.misplaced_keys import NEWEST_MAX, check_keys, checkable_topics  # noqa: PLC0415
    from processor.topics import Problem  # noqa: PLC0415

    problems = []
    for name in checkable_topics(config):
        with records_read(f"looking at the keys of {name}") as on_read:
            try:
                check = check_keys(config, admin, name, newest_max=None if reads_all else NEWEST_MAX, on_read=on_read)
            except Stop as error:
                problems.append(
                    Problem(
                        "warn",
                        config.kafka_names.topic(name, "sow"),
                        f"has keys that were not looked at: {error}",
                        "try again",
                    )
                )
                continue
        if check is not None and check.problem is not None:
            problems.append(check.problem)
        elif check is not None and reads_all:
            inform(f"{check.topic}: each key is in its own partition ({check.extent}).")
    return problems


def _own_specs(config: Config) -> list[TopicSpec]:
    """The topics that all families of an installation share."""
    from processor.topics.family import control_spec, directory_spec  # noqa: PLC0415

    return [directory_spec(config.topic_prefix), control_spec(config.topic_prefix)]


def reshard(
    topic: TopicArgument,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="Longest wait for the workers; if they have not left, they go on.")
    ] = 180.0,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; else it is only printed what would be done.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Give up a move that has died before it moved anything.")
    ] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Move a topic to another one with another number of partitions: the one with `moved_from` in its settings.

    Publishers go on: what they publish to the old topic is forwarded to the new one, in the order of each key, exactly
    once. The workers of the topic leave by themselves, its records and publishers' numbers are copied, and the workers
    of both topics go on. Readers of the old topic end with an error that names the new one. After a death, run the same
    command again.
    """
    from processor.repair.reshard import Reshard, dependents  # noqa: PLC0415

    tree = settings(config, bootstrap)
    with (
        records_read("copying") as on_copied,
        Reshard(tree, topic, timeout_s=timeout, on_step=_show_step, on_copied=on_copied) as move,
    ):
        if cancel:
            has_begun = move.cancel()
            inform(f"The workers of {topic} go on." if has_begun else f"No move of {topic} has begun.")
            return
        name = move.moved_to
        for other in dependents(tree, topic):
            inform(f"{other} is made of {topic}, and will get no more updates: make a new one of {name}.")
        if not yes:
            move.check()
            inform(
                f"{topic}, {tree.topics[topic].partitions} partitions, would move to {name}, "
                f"{tree.topics[name].partitions} partitions. Nothing was changed. Once all workers "
                "run with these settings, --yes does it."
            )
            return
        done = move.run()
    inform(
        f"{topic} has moved to {name}: {done.records:,} records written, no worker merged for {done.stood_s:.1f} s. "
        f"What is published to {topic} is forwarded; move publishers and readers to {name} when it suits them."
    )
    if done.forgotten:
        inform(
            f"Each partition of {name} gets the publishers' numbers of all partitions of {topic}, and has no room for "
            f"{done.forgotten:,} of them, the oldest: a command that such a publisher sends again is merged twice."
        )


_DOING = {
    "check": "Looking at settings and topics",
    "claim": "Telling the workers to leave",
    "drain": "Waiting until the workers have left",
    "copy": "Copying records and publishers' numbers",
    "move": "Letting the workers go on, and telling readers",
    "settle": "Waiting until the old partitions are forwarded, before those that were added",
}


def _show_step(step: str) -> None:
    inform(f"{_DOING[step]} …")


def _report(wrong: list[Problem], *, as_json: bool = False) -> None:
    if wrong:
        names = ("severity", "topic", "what", "to_do") if as_json else ()
        table(("", "topic", "what is wrong", "what to do"), wrong, names=names)
    if refused := sum(problem.severity == "refuse" for problem in wrong):
        inform(f"{counted(refused, 'problem')}, {counted(len(wrong) - refused, 'warning')}.")
        raise typer.Exit(1)
    if wrong:
        inform(f"{counted(len(wrong), 'warning')}.")
