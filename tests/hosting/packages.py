"""Installs a third party's package for a test, as an installer would leave it on the disk."""

from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "processor" / "docs" / "examples" / "example-plugin"
"""The example package of the documentation, with its project file."""


def install(site: Path, name: str, entry_points: dict[str, str]) -> None:
    """Write the metadata of a package with processors: its name and its entry points."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "\n".join(f"{point} = {target}" for point, target in entry_points.items())
    (info / "entry_points.txt").write_text(f"[sowstream.processors]\n{lines}\n")
