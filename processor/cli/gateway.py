"""`sowstream gateway`: serve topics to browsers until it is stopped."""

from __future__ import annotations

from typing import Annotated

import typer

from processor.cli.settings import Bootstrap, ConfigFile, StateDir, settings
from processor.runtime.process.signals import stop_on_signal


def gateway(
    config: ConfigFile = None,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="HOST:PORT", help="The address; beats the settings.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=256, help="How many processes share the port.")] = 1,
) -> None:
    """Serve topics to browsers: WebSocket, Server-Sent Events, HTTP and a page, until SIGTERM or Ctrl-C."""
    from processor.errors import ConfigurationError  # noqa: PLC0415

    stop = stop_on_signal()
    tree = settings(config, bootstrap, state_dir)
    if listen is not None:
        from pydantic import ValidationError  # noqa: PLC0415

        from processor.config.gateway import GatewayConfig  # noqa: PLC0415

        try:
            section = GatewayConfig(**(tree.gateway.model_dump() | {"listen": listen}))
        except ValidationError as error:
            raise ConfigurationError(f"--listen: {error.errors()[0]['msg']}") from None
        tree = tree.model_copy(update={"gateway": section})
    try:
        from processor.gateway.server import run_gateway  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is not installed: pip install 'sowstream[gateway]'") from None
    raise typer.Exit(run_gateway(tree, stop, processes=processes))
