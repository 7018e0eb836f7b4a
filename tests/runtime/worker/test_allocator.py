"""Tests of the memory allocator of a process."""

import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import pytest

from processor.runtime.worker import os_process

SAY = [sys.executable, "-c", "from processor.runtime.worker import os_process; print(os_process.in_use())"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("7f00-7f01 r-xp 0 fe:00 1 /usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "jemalloc"),
        ("7f00-7f01 r-xp 0 fe:00 1 /usr/lib/libtcmalloc_minimal.so.4.5.10", "tcmalloc"),
        ("7f00-7f01 r-xp 0 fe:00 1 /usr/lib/libmimalloc.so.2.0", "mimalloc"),
        ("7f00-7f01 r-xp 0 fe:00 1 /home/jemalloc/libc.so.6", "libc"),
    ],
)
def test_the_allocator_is_detected_from_the_loaded_libraries(tmp_path: Path, line: str, name: str) -> None:
    """Only the file name of a library counts, not the name of its directory."""
    maps = tmp_path / "maps"
    maps.write_text(f"7e00-7e01 r-xp 0 fe:00 1 /usr/bin/python\n{line}\n")
    assert os_process.in_use(maps) == name


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_large_blocks_that_are_freed_go_back_to_the_system() -> None:
    """Freed blocks return to the system also between small blocks that stay; by default next to none do."""
    program = (
        "import sys; from processor.runtime.worker import os_process\n"
        "assert os_process.return_large_blocks() or sys.argv[1] == 'no'\n"
        "lines = lambda: open('/proc/self/status')\n"
        "held = lambda: next(int(line.split()[1]) for line in lines() if 'VmRSS' in line) // 1024\n"
        "kept, before = [], held()\n"
        "for _ in range(20):\n"
        "    blocks = []\n"
        "    for _ in range(100):\n"
        "        blocks.append(b'x' * 900_000)\n"
        "        kept.append(b'y' * 3_000)\n"
        "    del blocks\n"
        "print(held() - before)\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([sys.executable, "-c", program, "yes"], env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40, done.stdout


def test_the_allocator_is_libc_without_a_list_of_libraries(tmp_path: Path) -> None:
    """Systems other than Linux have no list of loaded libraries."""
    assert os_process.in_use(tmp_path / "none") == "libc"


@pytest.mark.skipif(find_library("jemalloc") is None, reason="jemalloc is not installed")
def test_a_program_with_the_environment_has_jemalloc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader loads the library that `environment` has found."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    done = subprocess.run(
        SAY, env={**os.environ, **os_process.environment()}, capture_output=True, text=True, check=True
    )
    assert (done.stdout.strip(), done.stderr) == ("jemalloc", "")
    assert os_process.of_programs() == "jemalloc"


def test_an_ld_preload_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """`environment` adds no variable if the user has set `LD_PRELOAD`."""
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libmine.so")
    monkeypatch.setattr(os_process, "find_library", lambda _: "libjemalloc.so.2")
    assert os_process.environment() == {}
    monkeypatch.delenv("LD_PRELOAD")
    assert os_process.environment() == {"LD_PRELOAD": "libjemalloc.so.2"}


def test_a_machine_without_jemalloc_uses_its_own_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jemalloc `environment` is empty, and the reported allocator is the one in use."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(os_process, "find_library", lambda _: None)
    assert os_process.environment() == {}
    assert os_process.of_programs() == os_process.in_use()
