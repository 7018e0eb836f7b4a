"""Creates the files that an installer writes for a third-party package."""

from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "example_plugin"


def install(site: Path, name: str, entry_points: dict[str, str]) -> None:
    """Write the files of an installed package with processors."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "\n".join(f"{point} = {target}" for point, target in entry_points.items())
    (info / "entry_points.txt").write_text(f"[sowstream.processors]\n{lines}\n")
