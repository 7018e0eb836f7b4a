"""Reads the settings: a YAML file, then the environment, then flags."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import structlog
import yaml
from pydantic import ValidationError
from pydantic_settings import SettingsError

from processor.config.config import Config
from processor.config.environment import misspelt
from processor.config.suggestions import explain
from processor.config.yaml_file import parse, problem_of
from processor.errors import ConfigurationError

log = structlog.stdlib.get_logger("sowstream.settings")


def load(
    path: Path | None = None,
    *,
    bootstrap: str | None = None,
    state_dir: Path | None = None,
    topic_prefix: str | None = None,
) -> Config:
    """Read the settings.

    Args:
        path: the YAML file. Without one, `./sowstream.yaml` is read where it exists.
        bootstrap: beats `kafka.bootstrap.servers`.
        state_dir: beats `state_dir`.
        topic_prefix: the setting of this name, for a reader without a file; the file and the environment beat it.

    Raises:
        ConfigurationError: the file is missing or not YAML, or a setting is wrong; one line each.
    """
    file = path or Path("sowstream.yaml")
    tree: dict[str, Any] = {}
    if path is not None or file.exists():
        tree = _read(file)
    if topic_prefix is not None:
        tree = {"topic_prefix": topic_prefix, **tree}
    try:
        config = Config(**tree)
    except ValidationError as error:
        place = file if tree else "the environment"
        raise ConfigurationError(f"{place}: settings that cannot be used:\n{explain(error, Config)}") from None
    except SettingsError as error:
        raise ConfigurationError(
            f"the environment: {error}; a whole section is written as JSON, one setting as SOWSTREAM_<SECTION>__<KEY>"
        ) from None
    for variable, meant in misspelt(os.environ, Config.model_fields).items():
        log.warning("variable of the environment that is no setting", variable=variable, meant=meant or None)
    flags: dict[str, Any] = {}
    if bootstrap is not None:
        flags["kafka"] = config.kafka | {"bootstrap.servers": bootstrap}
    if state_dir is not None:
        flags["state_dir"] = state_dir
    return config.model_copy(update=flags)


def _read(file: Path) -> dict[str, Any]:
    try:
        tree = parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}; name the settings file with -c FILE") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: not UTF-8 text, from byte {error.start} on") from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{file}: not YAML: {problem_of(error)}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(name, str) for name in tree):
        raise ConfigurationError(f"{file}: expected settings such as `topics:` at the top level")
    return tree
