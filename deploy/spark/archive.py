"""Packs Python, Sowstream and its packages into one file for `spark.archives`: `make spark-archive`.

The archive has an interpreter of its own with the shared libraries that it needs, so that a node of the cluster needs
no Python, only a glibc and a libstdc++ that are not older than those of this machine. It runs from any directory.
PySpark is not in it: Spark brings its own to each executor. The same inputs give the same bytes. ::

    python deploy/spark/archive.py build/sowstream-spark.tar.gz
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = ROOT / ".locks" / "spark.txt"

VERSION: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"

# Belong to the system: they come with its glibc, which all programs of a node share.
GLIBC: Final = re.compile(r"(ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|nsl|crypt|anl|mvec))\.so\.\d+")

STDLIB_LEFT_OUT: Final = {
    "__pycache__", "config-*", "dist-packages", "ensurepip", "idlelib", "lib2to3", "site-packages", "sitecustomize.py",
    "test", "tkinter", "_tkinter*", "turtledemo", "EXTERNALLY-MANAGED",
}  # fmt: skip
PACKAGES_LEFT_OUT: Final = ("bin", "numpy/**/tests", "pandas/tests", "pyarrow/tests", "pyarrow/include", "pyarrow/src")

# A Debian Python looks for packages elsewhere, and copied stays a Debian Python.
SITE: Final = """\
import os, site, sys
packages = os.path.join(sys.prefix, "lib", "{version}", "site-packages")
if packages not in sys.path:
    site.addsitedir(packages)
"""
COMMAND: Final = '#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/python" -m {module} "$@"\n'
COMMANDS: Final = {"sowstream": "processor.cli.main", "sowstream-spark": "spark_integration.cli"}


def build(target: Path) -> None:
    """Write the archive.

    Args:
        target: the file, `*.tar.gz`; its directory is created.

    Raises:
        subprocess.CalledProcessError: pip or patchelf has failed; its own output has the reason.
    """
    with tempfile.TemporaryDirectory(prefix="spark-archive-") as scratch:
        home = Path(scratch) / "environment"
        copy_interpreter(home)
        install_packages(home, Path(scratch))
        compile_sources(home)
        target.parent.mkdir(parents=True, exist_ok=True)
        pack(home, target)
    print(f"{target}: {target.stat().st_size / 2**20:.0f} MiB, {VERSION}, {sysconfig.get_platform()}")


def copy_interpreter(home: Path) -> None:
    """Copy the interpreter that runs this, its standard library, and the shared libraries of both."""
    (home / "bin").mkdir(parents=True)
    interpreter = home / "bin" / VERSION
    shutil.copy2(Path(sys.base_exec_prefix) / "bin" / VERSION, interpreter)
    for name in ("python", "python3"):
        (home / "bin" / name).symlink_to(VERSION)
    library = home / "lib" / VERSION
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*STDLIB_LEFT_OUT))
    (library / "sitecustomize.py").write_text(SITE.format(version=VERSION))
    (library / "site-packages").mkdir()
    modules = sorted((library / "lib-dynload").glob("*.so"))
    # Asked of the originals: the copies do not find them any more.
    dynload = Path(sysconfig.get_path("stdlib"), "lib-dynload")
    originals = [sys.executable, *(dynload / module.name for module in modules)]
    for path in sorted({path for original in originals for path in libraries_of(str(original))}):
        shutil.copy2(path, home / "lib" / path.name)
        look_in("$ORIGIN", home / "lib" / path.name)
    look_in("$ORIGIN/../lib", interpreter)
    look_in("$ORIGIN/../..", *modules)


def libraries_of(binary: str) -> Iterator[Path]:
    """The shared libraries that a binary loads here, without those of glibc."""
    done = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True)
    for path in re.findall(r"=> (/\S+)", done.stdout):
        if not GLIBC.fullmatch(Path(path).name):
            yield Path(path)


def look_in(place: str, *binaries: Path) -> None:
    """Let binaries look for their shared libraries in a place relative to their own."""
    tool = shutil.which("patchelf", path=f"{Path(sys.executable).parent}:{sysconfig.get_path('scripts')}") or "patchelf"
    for binary in binaries:
        subprocess.run([tool, "--set-rpath", place, str(binary)], check=True)


def install_packages(home: Path, scratch: Path) -> None:
    """Install the locked packages and this project, and commands that need no absolute path."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    packages = home / "lib" / VERSION / "site-packages"
    install = [*pip, "install", "--no-compile", "--target", str(packages)]
    subprocess.run([*install, "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)], check=True)
    # Scripts begin with the path of the Python that runs pip.
    shutil.rmtree(packages / "bin")
    wheels = scratch / "wheels"
    source = copy_source(scratch)
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(source)], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
    for pattern in PACKAGES_LEFT_OUT:
        for directory in sorted(packages.glob(pattern)):
            shutil.rmtree(directory)
    for name, module in COMMANDS.items():
        command = home / "bin" / name
        command.write_text(COMMAND.format(module=module))
        command.chmod(0o755)
    shutil.copy2(Path(__file__).with_name("sowstream_spark.py"), home / "bin")


def copy_source(scratch: Path) -> Path:
    """Copy the files that a wheel is made of: a build in the checkout would leave its own files there."""
    source = scratch / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source)
    for name in ("processor", "spark_integration"):
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.c", "*.egg-info")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    return source


def compile_sources(home: Path) -> None:
    """Compile all modules once: an executor begins with a fresh copy, and may not write to it."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(home / "lib", quiet=2, workers=1, stripdir=str(home), invalidation_mode=unchecked)


def pack(home: Path, target: Path) -> None:
    """Write all files in the order of their names, without owners and times."""

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        member.mode |= 0o444
        return member

    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(home.rglob("*")):
            tar.add(path, str(path.relative_to(home)), recursive=False, filter=plain)


def main() -> None:
    """Build the archive that the command line names."""
    parser = argparse.ArgumentParser(description="Pack Python, Sowstream and its packages for spark.archives.")
    parser.add_argument("target", type=Path, nargs="?", default=ROOT / "build" / "sowstream-spark.tar.gz")
    build(parser.parse_args().target)


if __name__ == "__main__":
    main()
