"""The options that commands share: settings and topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

if TYPE_CHECKING:
    from processor.config import Config


_COMPLETION_TIMEOUT_S: Final = 2.0
"""Longest wait for a broker while the shell completes a name."""


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """The topics that begin with a text, for the shell's completion; no error is shown.

    They are those of the settings. If these name none and have Kafka's address, the topic directory there is read.
    """
    import logging  # noqa: PLC0415

    from processor.config import load  # noqa: PLC0415
    from processor.errors import SowstreamError  # noqa: PLC0415

    try:
        tree = load(context.params.get("config"), bootstrap=context.params.get("bootstrap"))
        if not tree.names_topics:
            from processor.installation.topic_directory import with_described_topics  # noqa: PLC0415

            logging.disable()  # The shell shows stderr next to the command that is being typed.
            tree = with_described_topics(tree.model_copy(update={"connect_timeout_s": _COMPLETION_TIMEOUT_S}))
    except SowstreamError:
        return []
    names = (*tree.topics, *tree.conflated, *tree.views, *tree.processors)
    return [name for name in names if name.startswith(incomplete)]


ConfigFile: TypeAlias = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings.  \\[default: ./sowstream.yaml]")
]
Bootstrap: TypeAlias = Annotated[
    str | None, typer.Option("--bootstrap", metavar="ADDR", help="Kafka's address; beats the settings.")
]
ReaderBootstrap: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        metavar="ADDR",
        help="Kafka's address; beats the settings. Without a settings file, the topics are read from the topic "
        "directory there.",
    ),
]
StateDir: TypeAlias = Annotated[
    Path | None, typer.Option("--state-dir", metavar="DIR", help="Where RocksDB keeps state; beats the settings.")
]
TopicArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="TOPIC", help="A topic of the settings.", autocompletion=topic_names)
]
ReaderTopic: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="A topic of the settings, or of the topic directory.", autocompletion=topic_names
    ),
]


def settings(config: Path | None, bootstrap: str | None, state_dir: Path | None = None) -> Config:
    """Read the settings; imported late, as `--help` does not need them.

    Raises:
        ConfigurationError: the settings are invalid.
    """
    from processor.config import load  # noqa: PLC0415

    return load(config, bootstrap=bootstrap, state_dir=state_dir, file_argument="-c FILE")


def reader_settings(config: Path | None, bootstrap: str | None) -> Config:
    """Read the settings of a reader or publisher; without topics in them, use those of the topic directory.

    Raises:
        ConfigurationError: the settings are invalid, or there is no topic directory.
        BrokerUnavailable: the topic directory is needed, and Kafka does not answer.
    """
    tree = settings(config, bootstrap)
    if tree.names_topics:
        return tree
    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.installation.topic_directory import with_described_topics  # noqa: PLC0415

    described = with_described_topics(tree)
    if not described.is_from_directory:
        raise ConfigurationError(
            f"{tree.no_topics}, or Kafka's address (--bootstrap ADDR): then the topics are read from the topic "
            "directory there"
        )
    return described


def with_listen(config: Config, listen: str | None) -> Config:
    """Settings with another address of the gateway; None: the same.

    Raises:
        ConfigurationError: it is no address, or needs other settings.
    """
    if listen is None:
        return config
    from pydantic import ValidationError  # noqa: PLC0415

    from processor.config.gateway import GatewayConfig  # noqa: PLC0415
    from processor.errors import ConfigurationError  # noqa: PLC0415

    try:
        section = GatewayConfig(**(config.gateway.model_dump() | {"listen": listen}))
    except ValidationError as error:
        raise ConfigurationError(f"--listen: {error.errors()[0]['msg']}") from None
    return config.model_copy(update={"gateway": section})
