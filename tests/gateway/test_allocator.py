"""`sowstream gateway` runs with the C library's allocator, which returns the memory of closed connections."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os, sys
from processor.cli.allocator import restart_with_malloc
pid = os.getpid()
print(json.dumps([pid, os.environ.get("PYTHONMALLOC"), sys.argv[1:]]), flush=True)
restart_with_malloc()
print("served")
"""


@pytest.mark.parametrize(("chosen", "allocators"), [(None, [None, "malloc"]), ("pymalloc", ["pymalloc"])])
def test_program_starts_again_once_with_malloc_unless_one_is_chosen(tmp_path, chosen, allocators):
    """The program is the same process with the same arguments; an allocator that the user has chosen stays."""
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONMALLOC"}
    if chosen is not None:
        environment["PYTHONMALLOC"] = chosen
    words = [sys.executable, str(tmp_path / "program.py"), "gateway", "-c", "a b"]
    output = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    *starts, last = output
    assert last == "served"
    pids, seen, arguments = zip(*map(json.loads, starts), strict=True)
    assert list(seen) == allocators
    assert len(set(pids)) == 1
    assert all(words == ["gateway", "-c", "a b"] for words in arguments)
