"""`sowstream plugins`: lists the plug-ins of installed packages."""

from __future__ import annotations

from processor.cli.output import AsJson, table

GROUPS = (
    "sowstream.processors",
    "sowstream.codecs",
    "sowstream.preprocessors",
    "sowstream.enrichers",
    "sowstream.merge_rules",
    "sowstream.functions",
    "sowstream.sasl_callbacks",
)


def plugins(as_json: AsJson = False) -> None:
    """Print the installed plug-ins: entry-point group, name, location, and whether each can be used."""
    from importlib.metadata import entry_points  # noqa: PLC0415

    from processor.errors import ConfigurationError  # noqa: PLC0415
    from processor.hosting.plugins import GROUP as PROCESSORS  # noqa: PLC0415
    from processor.hosting.plugins import load_processor  # noqa: PLC0415

    rows = []
    for group in GROUPS:
        for point in sorted(entry_points(group=group), key=lambda point: point.name):
            try:
                if group == PROCESSORS:
                    load_processor(point)
                else:
                    point.load()
            except ConfigurationError as error:
                state = str(error)
            except Exception as error:  # noqa: BLE001 - a plug-in may fail in any way
                state = f"cannot be loaded: {error}"
            else:
                state = "ok"
            package = point.dist.name if point.dist is not None else "?"
            rows.append((group, point.name, point.value, package, state))
    columns = ("group", "name", "object", "package", "state")
    table(columns, rows, names=columns if as_json else ())
