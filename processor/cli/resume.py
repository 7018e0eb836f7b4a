"""`sowstream resume`: resumes held partitions, and skips input that cannot be processed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from processor.cli.output import data, inform
from processor.cli.settings import Bootstrap, ConfigFile, TopicArgument, settings

if TYPE_CHECKING:
    from processor.hosting.pipeline import Pipeline
    from processor.kafka.admin.admin import Admin
    from processor.shared_topics.control import ControlEntries
    from processor.shared_topics.control.resume import Outcome


def resume(
    topic: TopicArgument,
    partition: Annotated[int | None, typer.Option(min=0, metavar="P", help="Only this one.  \\[default: all]")] = None,
    skip: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="OFFSET", help="Skip the input from where the partition stands up to this offset, included."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip indeed.")] = False,
    timeout: Annotated[float, typer.Option(min=1, metavar="S", help="Longest wait for the workers.")] = 15.0,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Let workers retry the held partitions of a topic now, and print the outcome; exit with 1 if one is held again.

    A partition that is held because too many records were rejected goes on rejecting them. With --skip the input up to
    an offset is not processed but goes to the dead letters with the reason `skipped`; `sowstream dlq replay` sends it
    back once the cause is fixed. `sowstream status` shows the held partitions with their reasons.
    """
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.hosting.configured_pipelines import pipeline_of  # noqa: PLC0415
    from processor.kafka.admin.admin import Admin  # noqa: PLC0415
    from processor.shared_topics.control import ControlTopic  # noqa: PLC0415
    from processor.shared_topics.control.resume import new_order, send_order  # noqa: PLC0415

    tree = settings(config, bootstrap)
    pipeline = pipeline_of(tree, topic)
    if skip is not None and partition is None:
        raise ConfigurationError("--skip needs --partition: offsets are those of one partition")
    admin = Admin(tree.kafka, tree.connect_timeout_s)
    control = ControlTopic(tree.kafka, admin, prefix=tree.topic_prefix)
    entries = control.read(tree.application_id)
    if entries is None:
        raise ConfigurationError(
            f"the topic {control.topic} does not exist, which carries orders to workers: run `sowstream topics apply`, "
            "and restart workers that are older than it"
        )
    if skip is not None and partition is not None:
        _check_skip(admin, pipeline, entries, partition, skip, is_sure=yes)
    elif not _is_anything_held(entries, topic, partition):
        inform(f"No worker says that {_named(topic, partition)} is held.")
        return
    outcomes = send_order(control, tree.application_id, topic, new_order(partition, skip), entries, timeout)
    _report(topic, outcomes, timeout)


def _is_anything_held(entries: ControlEntries, topic: str, partition: int | None) -> bool:
    held = entries.held.get(topic, {})
    return partition in held if partition is not None else bool(held or entries.failed.get(topic))


def _named(topic: str, partition: int | None) -> str:
    return f"a partition of {topic}" if partition is None else f"{topic} partition {partition}"


def _check_skip(
    admin: Admin, pipeline: Pipeline, entries: ControlEntries, partition: int, skip: int, *, is_sure: bool
) -> None:
    """Reject an invalid skip, and describe the effect of one that was not confirmed.

    Raises:
        ConfigurationError: it is invalid or not confirmed.
    """
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.shared_topics.control.resume import check_skip  # noqa: PLC0415

    notice = entries.held.get(pipeline.name, {}).get(partition)
    end = 0 if notice is None else admin.end_offsets(pipeline.source, [partition])[partition]
    check_skip(pipeline.name, pipeline.source, partition, notice, skip, end)
    if is_sure or notice is None:
        return
    raise ConfigurationError(
        f"{pipeline.name} partition {partition} is held at offset {notice.offset} ({notice.reason}): {notice.message}\n"
        f"--skip {skip} would not process the {skip - notice.offset + 1:,} offsets from {notice.offset} to {skip} of "
        f"{pipeline.source}, and send their records to {pipeline.output('dlq')}; confirm it with --yes"
    )


def _report(topic: str, outcomes: list[Outcome], timeout_s: float) -> None:
    for outcome in outcomes:
        if outcome.goes_on:
            data(f"{topic} {outcome.what}: goes on")
        elif outcome.is_over:
            data(f"{topic} {outcome.what}: held again: {outcome.why}")
        else:
            last = f" (its last word: {outcome.why})" if outcome.why else ""
            data(
                f"{topic} {outcome.what}: no worker has obeyed within {timeout_s:g} s{last}; the order stands for ten "
                f"minutes. `sowstream status {topic}` shows whether one runs"
            )
    if not all(outcome.goes_on for outcome in outcomes):
        raise typer.Exit(1)
