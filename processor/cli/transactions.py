"""`sowstream transactions`: lists transactions that Kafka left open in a partition, and ends them as decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from processor.cli.output import inform, table
from processor.cli.shared_options import Bootstrap, ConfigFile, TopicArgument, settings

if TYPE_CHECKING:
    from processor.repair.transactions.open_transactions import OpenTransaction
    from processor.repair.transactions.settlement import Settled

app = typer.Typer(
    help="Transactions that Kafka left open in a partition: look for them, and end them as their coordinator decided.",
    no_args_is_help=True,
)


@app.command(name="list")
def list_open(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="A topic of the settings; all, if none.")] = None,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Print the transactions that are open for longer than their timeout allows; exit with 1 if there are any.

    Each with its partition, offsets, age in seconds, producer id and epoch, transactional id, the coordinator's state
    and epoch, its right end (commit, abort, or unknown), and the reason.
    """
    from processor.kafka.admin.admin import Admin  # noqa: PLC0415
    from processor.repair.transactions.open_transactions import examine, standing  # noqa: PLC0415
    from processor.repair.transactions.transaction_admin import TransactionAdmin  # noqa: PLC0415

    tree = settings(config, bootstrap)
    cluster = Admin(tree.kafka, tree.connect_timeout_s).cluster()
    ranges = standing(tree, cluster, [topic] if topic else ())
    opened: list[OpenTransaction] = []
    if any(ranges.values()):
        with TransactionAdmin(tree.kafka) as transactions:
            for name, there in ranges.items():
                opened += examine(tree, cluster, transactions, there, name)
    _draw(opened)
    if opened:
        names = ", ".join(dict.fromkeys(transaction.name for transaction in opened))
        inform(f"{len(opened)} transactions stand open. `sowstream transactions settle` ends those of: {names}.")
        raise typer.Exit(1)
    inform("No transaction stands open.")


@app.command()
def settle(
    topic: TopicArgument,
    partition: Annotated[int | None, typer.Option(min=0, metavar="P", help="Only this partition.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, what would be done is printed.")] = False,
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
) -> None:
    """End the open transactions in a topic's partitions as their coordinator decided; exit with 1 if some are left.

    A transaction that the coordinator has committed is committed: its input offsets are, so its records must be
    visible. The marker is written only there, and workers may run meanwhile. A transaction without a known decision is
    not touched. Afterwards SOW and deltas of each affected key are compared, version by version, and printed: a deleted
    key has version 0.
    """
    from processor.kafka.admin.admin import Admin  # noqa: PLC0415
    from processor.repair.transactions.settlement import Settlement  # noqa: PLC0415
    from processor.repair.transactions.transaction_admin import TransactionAdmin  # noqa: PLC0415

    tree = settings(config, bootstrap)
    with TransactionAdmin(tree.kafka) as transactions:
        settlement = Settlement(
            tree, Admin(tree.kafka, tree.connect_timeout_s), transactions, topic, partition=partition
        )
        _draw(settlement.opened)
        if not settlement.opened:
            inform(f"No transaction stands open in {topic}.")
            return
        if not yes:
            inform("Nothing was done: --yes ends them so.")
            raise typer.Exit(1)
        settled = settlement.carry_out()
    _report(topic, settled)
    if settlement.refused:
        inform(f"{len(settlement.refused)} were not touched; the reason is in the last column.")
    if settlement.refused or settled.waiting or any(key.problem for key in settled.keys):
        raise typer.Exit(1)


def _draw(opened: list[OpenTransaction]) -> None:
    columns = ("partition", "offsets", "age s", "producer", "transactional id", "coordinator", "right end", "why")
    if opened:
        table(columns, [_row(transaction) for transaction in opened])


def _row(transaction: OpenTransaction) -> tuple[str, ...]:
    open_range, producer, state, marker = (
        transaction.open_range,
        transaction.producer,
        transaction.state,
        transaction.verdict.marker,
    )
    return (
        open_range.place,
        f"{producer.begin} to {open_range.end}",
        f"{transaction.age_s:.0f}",
        f"{producer.producer_id}, epoch {producer.epoch}",
        transaction.transactional_id or "unknown",
        f"{state.state}, epoch {state.epoch}" if state is not None else "unknown",
        "unknown" if marker is None else "commit" if marker.is_commit else "abort",
        transaction.verdict.why,
    )


def _report(topic: str, settled: Settled) -> None:
    """Print the ended transactions, and the versions of the affected keys that readers see."""
    if not settled.ended:
        return
    commits = sum(
        transaction.verdict.marker is not None and transaction.verdict.marker.is_commit for transaction in settled.ended
    )
    inform(f"{commits} transactions committed and {len(settled.ended) - commits} rolled back in {topic}.")
    for open_range in settled.waiting:
        inform(f"{open_range.place}: readers still wait at offset {open_range.begin} of {open_range.end}.")
    if not settled.keys:
        return
    table(
        ("partition", "key", "version written", "version in SOW", "version of last delta", "what is wrong"),
        (
            (
                str(key.partition),
                key.key.decode(errors="replace"),
                *("none" if version is None else str(version) for version in (key.written, key.sow, key.delta)),
                key.problem,
            )
            for key in settled.keys
        ),
    )
    wrong = sum(bool(key.problem) for key in settled.keys)
    inform(
        f"{len(settled.keys)} keys were in question: "
        + (f"{wrong} are wrong; publish them in full." if wrong else "SOW and deltas agree on each of them.")
    )
