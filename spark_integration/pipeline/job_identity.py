"""The identity of a job: an id for its checkpoint, and an epoch that grows when its settings or its code change."""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import structlog

from processor.errors import ConfigurationError
from spark_integration.pipeline.job import Job, JobIdentity, JobSettings
from spark_integration.small_files import SmallFiles

log = structlog.stdlib.get_logger("sowstream.spark")

FILE: Final = "sowstream-job.json"
"""The name of the file with the identity, in the directory of the checkpoint."""

_PACE: Final = {"every", "kafka"}
"""Settings that change the pace or the connection and not the rows of a batch."""

_REMEDY: Final = "restore the file, or remove the whole directory of the checkpoint: then the job begins again"

_ROOM: Final = Path(__file__).parent.parent


def identify(name: str, kind: type[Job[Any]], settings: JobSettings, topics: Any, files: SmallFiles) -> JobIdentity:
    """Find the identity of a job, and begin a new epoch if its settings or its code have changed.

    Args:
        name: the name of the job.
        kind: its class.
        settings: its settings.
        topics: the settings of the topics that it uses, as a tree of plain values.
        files: the files in the directory of its checkpoint.

    Raises:
        ConfigurationError: the file with the identity is damaged or gone, or the checkpoint belongs to another job.
    """
    parts = {
        "settings": _digest(settings.model_dump_json(by_alias=True, exclude=_PACE)),
        "topics": _digest(json.dumps(topics, sort_keys=True, default=str)),
        "code": _code(kind),
        "version": version("sowstream"),
    }
    text = files.read(FILE)
    if text is None and files.names("offsets"):
        raise ConfigurationError(
            f"{name}: its checkpoint has micro-batches, and {FILE} in it is gone, by whose id repeated rows are "
            f"recognised; {_REMEDY}"
        )
    if text is None:
        identity, changed = JobIdentity(uuid.uuid4().hex[:12], 1), ["new"]
    else:
        identity, before = _read(name, text)
        changed = [part for part in parts if before.get(part) != parts[part]]
        if changed:
            identity = JobIdentity(identity.id, identity.epoch + 1)
            log.warning("changed since the last start: a new epoch begins", job=name, epoch=identity.epoch,
                        changed=", ".join(changed))  # fmt: skip
    if changed:
        content = {"job": name, "id": identity.id, "epoch": identity.epoch, **parts}
        files.write(FILE, json.dumps(content, indent=1))
    return identity


def _read(name: str, text: str) -> tuple[JobIdentity, dict[str, str]]:
    try:
        content = json.loads(text)
        identity = JobIdentity(str(content["id"]), int(content["epoch"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{name}: {FILE} in its checkpoint is damaged: {error!r}; {_REMEDY}") from None
    if content.get("job") != name:
        raise ConfigurationError(
            f"{name}: its checkpoint belongs to the job {content.get('job')!r}; give each job its own directory"
        )
    return identity, content


def _code(kind: type[Job[Any]]) -> str:
    """A digest of the source files that a job's rows depend on."""
    module = sys.modules[kind.__module__]
    place = Path(module.__file__ or __file__)
    if place.is_relative_to(_ROOM):
        files: list[Path] = sorted(_sources())
    else:
        files = [place, *sorted(_sources())]
    return _digest("\n".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files))


def _sources() -> Iterator[Path]:
    for room in ("pipeline", "publish", "tables"):
        yield from (_ROOM / room).rglob("*.py")
    yield from (_ROOM / "read" / "mask.py", _ROOM / "small_files.py")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
