"""`sowstream up`, `broker`, `demo` and `bench`: trials of Sowstream on one machine."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from processor.cli.output import inform, table
from processor.cli.shared_options import Bootstrap, ConfigFile, StateDir, settings, with_listen
from processor.errors import SowstreamError, Stop
from processor.trial import gateway_is_installed
from processor.trial.broker.directories import background_data_dir
from processor.trial.broker.server import HEAP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from processor.config import Config
    from processor.trial.bench.result import Result
    from processor.trial.bench.run import BenchProgress


app = typer.Typer(help="An Apache Kafka in the background, on the loopback address.", no_args_is_help=True)

PORT = 9092
"""Kafka's usual port, which every command uses when no broker is named."""


def _heap(value: str) -> str:
    if not re.fullmatch(r"[1-9]\d*[kmgKMG]", value):
        raise typer.BadParameter("write a size as Java does: 512m, 2g")
    return value


Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The broker's records and logs. Default: sowstream/broker in the user's state directory.",
    ),
]


@app.command()
def start(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where clients connect; 0 is any free port.")] = PORT,
    data: Data = None,
    heap: Annotated[
        str, typer.Option(callback=_heap, metavar="SIZE", help="Java's memory, such as 512m or 2g.")
    ] = HEAP,
) -> None:
    """Start a broker, wait until it is ready, and print its address. A running one is left as it is."""
    directory = data or background_data_dir()
    running, is_new = _background().start(directory, port, heap)
    inform(f"{'Started' if is_new else 'Runs already'}: process {running.pid}, data and logs in {directory}")
    typer.echo(running.bootstrap)


@app.command()
def status(data: Data = None) -> None:
    """Print the broker's address; exit with 1 if none runs."""
    directory = data or background_data_dir()
    running = _background().find(directory)
    if running is None:
        inform(f"No broker runs on {directory}.")
        raise typer.Exit(1)
    inform(f"Runs: process {running.pid}, data and logs in {directory}")
    typer.echo(running.bootstrap)


@app.command()
def stop(data: Data = None) -> None:
    """Stop the broker. Its records are kept for the next start."""
    directory = data or background_data_dir()
    running = _background().stop(directory)
    inform(f"Stopped: process {running.pid}." if running else f"No broker runs on {directory}.")


def _background() -> ModuleType:
    """The module, imported late: the other commands work without the packages that the embedded broker needs."""
    try:
        from processor.trial.broker import background  # noqa: PLC0415
    except ImportError as error:
        raise Stop(f"the embedded broker needs {error.name}: pip install 'sowstream[embedded]'") from None
    return background


def up(
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="The address of the page; beats the settings.")
    ] = None,
    no_gateway: Annotated[bool, typer.Option("--no-gateway", help="Serve no page.")] = False,
    no_broker: Annotated[
        bool, typer.Option("--no-broker", help="Start no broker; wait for the one of the settings.")
    ] = False,
    temporary: Annotated[
        bool,
        typer.Option("--temporary", help="Keep nothing: records and states go at the end. For a broker of its own."),
    ] = False,
    data: Data = None,
    heap: Annotated[
        str, typer.Option(callback=_heap, metavar="SIZE", help="Memory of the broker's Java, such as 512m or 2g.")
    ] = HEAP,
) -> None:
    """Run everything of the settings file in one terminal, until Ctrl-C, which ends all of it.

    A Kafka, if none answers at kafka.bootstrap.servers and that is this machine's localhost; the missing topics; a
    worker for all topics, conflated topics and views; and, with the extra `gateway`, a page with the topics.

    On a terminal there is a line for each topic, and warnings; `sowstream -v up` shows every log line. Elsewhere the
    programs' log is written as JSON lines. If one of the programs ends, all end, and the reason is printed.
    """
    import logging  # noqa: PLC0415

    from processor.cli.topics import apply_settings  # noqa: PLC0415
    from processor.trial.up import UpOptions, run_up  # noqa: PLC0415

    if temporary and (state_dir is not None or data is not None):
        raise typer.BadParameter("it keeps nothing, so --state-dir and --data have no use", param_hint="--temporary")
    tree = settings(config, bootstrap, state_dir)
    _refuse_unusable(tree)
    given = {"--config": config, "--bootstrap": bootstrap, "--state-dir": state_dir}
    options = UpOptions(
        arguments=tuple(word for name, value in given.items() if value is not None for word in (name, str(value))),
        listen=listen,
        starts_broker=not no_broker,
        starts_gateway=not no_gateway,
        broker_dir=data or background_data_dir(),
        heap=heap,
        is_temporary=temporary,
        is_verbose=logging.getLogger("sowstream").isEnabledFor(logging.DEBUG),
    )
    raise typer.Exit(run_up(with_listen(tree, listen), options, lambda tree, show: apply_settings(tree, show, _hide)))


def _refuse_unusable(tree: Config) -> None:
    """Reject settings that a worker would refuse, before a broker is fetched and topics are created.

    Raises:
        ConfigurationError: they name no topics, or some cannot be used; with a line for each problem.
    """
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.installation.settings_check import check_offline  # noqa: PLC0415

    report = check_offline(tree)
    if not report.topics:
        raise ConfigurationError(tree.no_topics)
    if report.problems:
        lines = [f"{topic}: {problem}" if topic else problem for topic, problem in report.problems]
        raise ConfigurationError("\n  ".join(["these settings cannot be used:", *lines]))


def _hide(_line: str) -> None:
    """Print nothing."""


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="Publish for so long, then check everything.  \\[default: until Ctrl-C, no check]"),
    ] = None,
    rate: Annotated[float, typer.Option(min=10, max=20_000, help="Records a second, both feeds together.")] = 2_000,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", metavar="ADDR", help="Use this Kafka.  \\[default: one of its own]")
    ] = None,
    kill_worker: Annotated[
        bool, typer.Option("--kill-worker", help="Kill a worker midway, without warning, and start it again.")
    ] = False,
    web: Annotated[
        bool,
        typer.Option("--web/--no-web", help="Serve the topics to browsers, with a page (extra `gateway`)."),
    ] = True,
    spark: Annotated[
        bool, typer.Option("--spark", help="Keep the orders as a table on Spark too, which needs PySpark and Java.")
    ] = False,
) -> None:
    """Run a real Kafka, workers and feeds with a live picture; check the results, and leave nothing behind."""
    try:
        from processor.trial.demo import DemoOptions, run_demo  # noqa: PLC0415
    except ImportError as error:
        raise Stop(f"the demo needs {error.name}: pip install 'sowstream[embedded]'") from None
    is_web = web and gateway_is_installed()
    raise typer.Exit(run_demo(DemoOptions(seconds, rate, bootstrap, kill_worker, spark=spark, is_web=is_web)))


_LATENCY_RECORDS_MAX = 2_000
"""Enough for twenty records above the p99; more would not add precision. A small trial has fewer."""
_INTERRUPTED = 130


def bench(
    records: Annotated[int, typer.Option(min=1_000, max=100_000_000, help="Input records of each round.")] = 300_000,
    keys: Annotated[int, typer.Option(min=1, help="How many keys they have, at most.")] = 50_000,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="How often both programs run, in turn.")] = 3,
    rate: Annotated[float, typer.Option(min=1, max=2_000, help="Records a second at which latency is measured.")] = 500,
    no_latency: Annotated[bool, typer.Option("--no-latency", help="Measure throughput only.")] = False,
    to: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write every figure to this file, too.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Use the Kafka of these settings, and nothing else of them."
        ),
    ] = None,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", metavar="ADDR", help="Use this Kafka.  \\[default: one of its own]")
    ] = None,
) -> None:
    """Measure one worker next to the pass-through ceiling: throughput, processor time, latency; leave nothing behind.

    It measures Sowstream as shipped, one process, exactly once, on input of its own.
    The ceiling is a program on the same client library that reads every record and writes it to two topics.
    The gap between a worker and that ceiling is the cost of its work; this ratio carries over to other machines better
    than the figures. With the sources, `make program NAME=benchmarks.throughput` compares a worker with other products.
    """
    try:
        from processor.trial.bench.plan import BenchOptions  # noqa: PLC0415
        from processor.trial.bench.result import as_tree  # noqa: PLC0415
        from processor.trial.bench.run import run_bench  # noqa: PLC0415
    except ImportError as error:
        raise Stop(f"the benchmark needs {error.name}: pip install 'sowstream[embedded]'") from None
    _refuse_unwritable(to)
    latency_records = 0 if no_latency else min(_LATENCY_RECORDS_MAX, records // 5)
    plan = BenchOptions(records, keys, rounds, rate, latency_records, _kafka(config, bootstrap))
    try:
        with _progress() as progress:
            result = run_bench(plan, progress)
    except SowstreamError as error:
        _print_leftovers(error)
        raise
    except KeyboardInterrupt as interrupt:
        inform(f"Stopped by {interrupt}, and cleaned up; half a run has no figures.")
        _print_leftovers(interrupt)
        raise typer.Exit(_INTERRUPTED if str(interrupt) == "SIGINT" else 1) from None
    _report(result)
    if to is not None:
        try:
            to.write_text(json.dumps(as_tree(result), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise Stop(f"{to}: {error.strerror}; the figures above are all there is") from None
        inform(f"Every figure is in {to}.")


def _kafka(config: Path | None, bootstrap: str | None) -> Mapping[str, str] | None:
    """The properties of the Kafka chosen by the options, if any."""
    if config is not None:
        return settings(config, bootstrap).kafka
    return None if bootstrap is None else {"bootstrap.servers": bootstrap}


def _refuse_unwritable(file: Path | None) -> None:
    """Reject a file that cannot be written before the benchmark runs for two minutes."""
    if file is not None and (file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK)):
        raise typer.BadParameter(f"{file} cannot be written", param_hint="--json")


def _print_leftovers(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        inform(note)


def _report(result: Result) -> None:
    """Print the tables as data, and their explanation for people."""
    from processor.trial.bench import result as texts  # noqa: PLC0415

    table(texts.THROUGHPUT_COLUMNS, texts.throughput_rows(result))
    if result.delays_s:
        table(texts.LATENCY_COLUMNS, texts.latency_rows(result))
    inform(texts.EXPLAINED)
    if result.delays_s:
        inform(texts.LATENCY_EXPLAINED)


class _LogProgress:
    """Progress for a log: events only, no bar."""

    def say(self, line: str) -> None:
        inform(line)

    def show(self, doing: str, done: int = 0, total: int | None = None) -> None:
        """Print nothing."""


@contextmanager
def _progress() -> Iterator[BenchProgress]:
    """A bar on a terminal with events above it; lines elsewhere."""
    if not sys.stderr.isatty():
        yield _LogProgress()
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False, markup=False)
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None, count="")

        class Drawn:
            """Progress on a terminal."""

            def say(self, line: str) -> None:
                console.print(line, soft_wrap=True)

            def show(self, doing: str, done: int = 0, total: int | None = None) -> None:
                count = "" if total is None else f"{done:,} of {total:,}"
                bars.update(task, description=doing, completed=done, total=total, count=count)

        yield Drawn()
