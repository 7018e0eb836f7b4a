"""Runs the notebooks and draws their pictures: `make notebooks ARGS="--only live_view"`.

A worker merges a feed of orders on a Kafka of its own; then each notebook runs in a kernel of its own and is written
back with its results and, next to it, its picture. The exit code is 1 if a cell fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from processor.cli.main import run as apply_topics
from processor.errors import Stop
from processor.trial.broker import EmbeddedBroker
from tests.endtoend.world import World
from tests.programs.notebooks.feed import Feed

ROOT: Final = Path(__file__).parents[3]
FOLDER: Final = ROOT / "spark_integration" / "examples" / "notebooks"
CLIENT_FOLDER: Final = ROOT / "processor" / "docs" / "examples" / "notebooks"
"""Notebooks of the Python client; each publishes by itself, on a topic of its own with its name."""
TOPIC: Final = "orders"
SEED: Final = 11
SECOND_COUNTS: Final = (60, 60, 60, 200, 260, 260, 120, 60, 60, 160, 200, 120, 60, 60)
"""Commands in each second of the feed, which has two bursts."""
CELL_TIMEOUT_S: Final = 900
PATIENCE_S: Final = 600.0
"""Limit for the broker's start and for the merge; a busy machine is no reason to fail."""
UNHURRIED: Final = {"session_timeout_s": 45, "transaction_timeout_s": 60}
# The notebook that looks back may run long after the feed.
KEPT: Final = {"min.compaction.lag.ms": "7200000"}
# Pictures that differ only where their data do.
DRAWING: Final = "svg.hashsalt: sowstream\nsvg.fonttype: path\naxes.spines.top: False\naxes.spines.right: False\n"


def feed(world: World) -> None:
    """Publish the commands at their times, and wait until they are merged."""
    commands = Feed(SEED)
    begin = time.monotonic()
    for second, count in enumerate(SECOND_COUNTS):
        for part in range(4):
            time.sleep(max(0.0, begin + second + part / 4 - time.monotonic()))
            world.publish(list(commands.commands(count // 4)))
    deadline = time.monotonic() + PATIENCE_S
    while not world.processed():
        if time.monotonic() > deadline:
            raise Stop(f"the worker has not merged the feed in {PATIENCE_S:g} s; its log: {world.workers[-1].log()}")
        time.sleep(0.2)


def run(file: Path, scratch: Path) -> None:
    """Run a notebook in a scratch directory; write it back with its results, and its picture next to it.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell has failed.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    begin = time.monotonic()
    place = {"metadata": {"path": str(scratch)}}
    limits = {"timeout": CELL_TIMEOUT_S, "startup_timeout": int(PATIENCE_S)}
    NotebookClient(notebook, kernel_name="python3", resources=place, **limits).execute()
    for cell in notebook.cells:
        clean(cell)
    nbformat.write(notebook, file)
    shutil.move(scratch / f"{file.stem}.svg", file.with_suffix(".svg"))
    print(f"{file.name}: {time.monotonic() - begin:.0f} s", flush=True)


def clean(cell: Any) -> None:
    """Leave the results that a reader wants: no times, no notes of Spark's start, no pictures, which are files."""
    cell.metadata = {}
    if cell.cell_type == "code":
        cell.outputs = [output for output in cell.outputs if output.output_type == "execute_result"]
        for output in cell.outputs:
            output.data = {kind: text for kind, text in output.data.items() if kind in ("text/plain", "text/html")}


def main() -> int:
    """Run the notebooks of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs.notebooks", description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="names of notebooks; none: all")
    only = parser.parse_args().only
    own, fed = ([file for file in sorted(folder.glob("*.ipynb")) if not only or file.stem in only]
                for folder in (CLIENT_FOLDER, FOLDER))  # fmt: skip
    from nbclient.exceptions import CellExecutionError

    # The broker and Spark are gone before the thorough compiler has paid.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    with (
        EmbeddedBroker(start_timeout_s=PATIENCE_S) as broker,
        tempfile.TemporaryDirectory(prefix="sowstream-notebooks-") as scratch,
    ):
        directory = Path(scratch)
        (directory / "matplotlibrc").write_text(DRAWING)
        os.environ |= {"KAFKA": broker.bootstrap, "MATPLOTLIBRC": scratch, "MPLBACKEND": "svg",
                       "PYSPARK_PYTHON": sys.executable, "SOURCE_DATE_EPOCH": "0"}  # fmt: skip
        others = {file.stem: {"key": ["/id"], "partitions": 1} for file in own}
        with closing(World(broker.bootstrap, directory, TOPIC, runtime=UNHURRIED, others=others, config=KEPT)) as world:
            if (
                apply_topics(["topics", "apply", "-c", str(world.file)]) != 0
            ):  # Notebooks may have Kafka's address alone.
                return 1
            world.start()
            if fed:
                feed(world)
            for file in own + fed:
                os.environ["TOPIC"] = file.stem if file in own else TOPIC
                try:
                    run(file, directory)
                except CellExecutionError as error:
                    print(f"{file.name}: {error}", file=sys.stderr)
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
