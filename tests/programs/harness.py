"""The harness of the programs: options that follow from a plan, a broker and a directory for the run, and the verdict.

```python
if __name__ == "__main__":
    sys.exit(main("claims", __doc__, Plan, run))
```

A plan is a `NamedTuple` whose fields are the program's options: name, type, default and the text below it as the help.
Its function `run` gets the plan, a broker's address, an empty directory, a name for topics, and a function that reports
progress.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import secrets
import shutil
import signal
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from processor.trial.broker import EmbeddedBroker

_START_TIMEOUT_S = 300.0  # A busy machine takes that long to start a broker.


class Verdict(NamedTuple):
    """The result of a run."""

    wrong: list[str]
    """The broken promises; none if all is well."""
    figures: list[str]
    """Lines for people."""

    def __str__(self) -> str:
        return "\n".join([*self.figures, *self.wrong])


class Judged(Protocol):
    """The result of a run: its text has the figures and the broken promises."""

    @property
    def wrong(self) -> Sequence[str]:
        """The broken promises."""


P = TypeVar("P", bound=tuple[Any, ...])
Report: TypeAlias = Callable[[str], None]
Run: TypeAlias = Callable[[P, str, Path, str, Report], Judged]


class Options(NamedTuple, Generic[P]):
    """The options of a call."""

    plan: P
    bootstrap: str | None = None
    """A Kafka that runs; None: an embedded one."""
    keep: bool = False
    """Whether directories and logs are kept, also of a good run."""


def main(program: str, description: str | None, plan: type[P], run: Run[P]) -> int:
    """Run a program of one plan; returns 1 if a promise was broken."""
    options = read_options(program, description, plan)
    return play(program, [options.plan], run, options)


def read_options(program: str, description: str | None, plan: type[P]) -> Options[P]:
    """The options of the command line; what is random follows from the seed."""
    parser = parser_of(program, description)
    types, helps, defaults = get_type_hints(plan), field_texts(plan), getattr(plan, "_field_defaults", {})
    for name, kind in types.items():
        option: dict[str, Any] = {"help": helps.get(name), "default": defaults.get(name)}
        if kind is bool:
            option["action"] = "store_true"
        elif get_origin(kind) is Literal:
            option["choices"] = get_args(kind)
        else:
            option["type"] = kind
        if name != "seed":
            parser.add_argument(f"--{name.replace('_', '-')}", **option)
    arguments = vars(parser.parse_args())
    return Options(plan(**{name: arguments[name] for name in types}), arguments["bootstrap"], arguments["keep"])


def parser_of(program: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all programs have: `--seed`, `--bootstrap` and `--keep`."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.programs.{program}", description=description)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="what is random follows from it")
    parser.add_argument("--bootstrap", help="a Kafka that runs; none: an embedded one")
    parser.add_argument("--keep", action="store_true", help="keep directories and logs")
    return parser


def field_texts(plan: type[Any]) -> dict[str, str]:
    """The text below each field of a class."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(plan))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: text.value.value
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def play(program: str, plans: Iterable[P], run: Run[P], options: Options[Any], *, has_own_broker: bool = False) -> int:
    """Run plans one after the other and print their verdicts; returns 1 if a promise was broken.

    The directory with settings, states and logs is kept if a run failed.

    Args:
        program: the name of the program.
        plans: the plans, each of which gets a directory of its own.
        run: runs a plan.
        options: the options of the call.
        has_own_broker: whether each run starts a broker that it can kill; it is then called with no address.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Workers and brokers end with this process.
    directory, is_good = Path(tempfile.mkdtemp(prefix=f"sowstream-{program}-")), False
    try:
        with contextlib.ExitStack() as cleanup:
            bootstrap = options.bootstrap or ""
            if not bootstrap and not has_own_broker:
                bootstrap = cleanup.enter_context(EmbeddedBroker(start_timeout_s=_START_TIMEOUT_S)).bootstrap
            verdicts = [_is_good(plan, run, bootstrap, directory / str(number)) for number, plan in enumerate(plans)]
        is_good = all(verdicts)
    finally:
        if options.keep or not is_good:
            print_progress(f"settings, states and logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return 0 if is_good else 1


def _is_good(plan: P, run: Run[P], bootstrap: str, directory: Path) -> bool:
    directory.mkdir()
    try:
        verdict = run(plan, bootstrap, directory, f"t{secrets.token_hex(4)}", print_progress)
    except AssertionError:
        traceback.print_exc()
        print(f"{plan}: FAILED", flush=True)
        return False
    print(f"{plan}: {'FAILED' if verdict.wrong else 'ok'}\n{verdict}", flush=True)
    return not verdict.wrong


def print_progress(text: str) -> None:
    """Print progress for people."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
