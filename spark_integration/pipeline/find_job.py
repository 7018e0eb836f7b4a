"""Finds the class of a job by its kind: built-in, an entry point of an installed package, or `package.module:Class`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from processor.config.suggestions import unknown_name
from processor.entry_points import find_installed, installed_names, load_installed
from processor.errors import ConfigurationError
from spark_integration.pipeline.job import Job

GROUP: Final = "sowstream.jobs"
"""The entry-point group of jobs in installed packages."""

_BUILT_IN: Final = {
    "archive": "spark_integration.pipeline.jobs.archive:Archive",
    "features": "spark_integration.pipeline.jobs.features:Features",
    "ingest": "spark_integration.pipeline.jobs.ingest:Ingest",
    "merge": "spark_integration.pipeline.jobs.merge:Merge",
    "table": "spark_integration.pipeline.jobs.table:Table",
}


def find_job(kind: str) -> type[Job[Any]]:
    """Load the class of a job.

    Args:
        kind: a built-in name, the name of an entry point, or `package.module:Class`.

    Raises:
        ConfigurationError: there is no such job, or it cannot be imported.
    """
    place = _BUILT_IN.get(kind, kind)
    if ":" not in place:
        if kind not in installed_names(GROUP):
            raise ConfigurationError(unknown_name("job", kind, sorted({*_BUILT_IN, *installed_names(GROUP)})))
        job = load_installed(find_installed(GROUP, "job", kind), "job")
    else:
        module, _, name = place.partition(":")
        try:
            job = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigurationError(f"job {kind!r} cannot be loaded: {error}; write package.module:Class") from error
    if not (isinstance(job, type) and issubclass(job, Job)):
        raise ConfigurationError(f"job {kind!r} is no subclass of {Job.__module__}.{Job.__name__}")
    return job
