"""`sowstream demo`: runs all of Sowstream on this machine, shows it live and checks the results."""

from __future__ import annotations

from typing import Annotated

import typer

from processor.errors import Stop


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
        from processor.tools.demo import DemoOptions, run_demo  # noqa: PLC0415
    except ImportError as error:
        raise Stop(f"the demo needs {error.name}: pip install 'sowstream[embedded]'") from None
    from importlib.util import find_spec  # noqa: PLC0415

    is_web = web and all(find_spec(name) is not None for name in ("starlette", "uvicorn", "jwt", "websockets"))
    raise typer.Exit(run_demo(DemoOptions(seconds, rate, bootstrap, kill_worker, spark=spark, is_web=is_web)))
