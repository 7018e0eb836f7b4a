"""Writes the golden files of this checkout: `python -m tests.golden [DIRECTORY]`.

By default they are those of the version in `pyproject.toml`. They are written once for each release: files of a
released version never change, as they stand for records that users have.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from processor import __version__
from tests.golden.messages import messages
from tests.golden.record_file import write_records
from tests.golden.states import make_state, make_view, pack
from tests.golden.texts import texts
from tests.golden.topics import topics

HERE = Path(__file__).parent


def main() -> None:
    """Write every file, and the commit that made them."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / __version__
    directory.mkdir(parents=True, exist_ok=True)
    written = topics()
    for name, records in written.items():
        write_records(directory / f"{name}.jsonl", records)
    write_records(directory / "messages.jsonl", messages())
    pack(make_state, directory / "state.tar.gz", written["orders.sow"])
    pack(make_view, directory / "kept-view.tar.gz", written["orders.sow"])
    write_tree(directory / "texts.json", texts())
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True)
    made = {"version": __version__, "commit": commit.stdout.strip(), "command": "python -m tests.golden"}
    write_tree(directory / "made.json", made)
    print(f"{len(written)} topics in {directory}")


def write_tree(path: Path, tree: object) -> None:
    """Write a JSON file for people."""
    path.write_text(json.dumps(tree, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
