"""Lists the programs; `make program NAME=faults ARGS=--list` runs one, as `python -m tests.programs.faults` does."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parent


def programs() -> dict[str, str]:
    """The name of each program, and the first line of its docstring."""
    found = {}
    for path in sorted(FOLDER.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if path.parent != FOLDER and 'if __name__ == "__main__"' in text:
            parts = path.relative_to(FOLDER).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__main__" else parts)
            found[name] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return found


if __name__ == "__main__":
    listed = programs()
    for name, line in listed.items():
        print(f"{name:{max(map(len, listed))}}  {line}")
