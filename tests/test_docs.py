import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import typer.main
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from processor.cli.main import command_line
from processor.config import Config
from processor.config.runtime import InternalConfig

README = Path(__file__).parent.parent / "processor" / "cli" / "README.md"
EVERYWHERE = {"--help", "--config", "--bootstrap"}


def table(section: str) -> list[list[str]]:
    """The cells of the first table under a heading of the README, without its head and without code marks."""
    text = README.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = [line.strip().strip("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)] for row in rows[2:]]


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command of the program with its full name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def flags(command: Any) -> set[str]:
    """The long names of a command's own options, without those that every command has."""
    return {name for option in command.params for name in option.opts if name.startswith("--")} - EVERYWHERE


def settings(model: type[BaseModel], prefix: str = "", seen: set[type] | None = None) -> Iterator[tuple[str, str]]:
    """Every setting with its default, in the README's spelling; a repeated section is listed once."""
    seen = set() if seen is None else seen
    for name, field in model.model_fields.items():
        name = field.alias or name  # noqa: PLW2901
        inner = section_of(field)
        if inner is InternalConfig:
            continue  # It is described for those who work on the project.
        if inner is None:
            yield f"{prefix}{name}", default_of(field)
        elif inner in seen:
            yield f"{prefix}{name}", "as above"
        else:
            seen.add(inner)
            is_mapping = str(field.annotation).startswith("dict")
            yield from settings(inner, f"{prefix}{name}.<name>." if is_mapping else f"{prefix}{name}.", seen)


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a setting that is a section, or a mapping of names to sections."""
    candidates = [field.annotation, *get_args(field.annotation)]
    return next((item for item in candidates if isinstance(item, type) and issubclass(item, BaseModel)), None)


def default_of(field: FieldInfo) -> str:
    """A default as JSON, or the word for a setting without one."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    return f"`{json.dumps(value, default=str)}`"


def test_every_command_is_in_the_readme_with_its_flags():
    """The README's table of commands lists exactly the commands of the program with their flags."""
    documented = {}
    for usage, text_of_flags, _ in table("Commands"):
        words = usage.strip("`").split()
        name = " ".join(word for word in words[1:] if word.islower())
        documented[name] = set(re.findall(r"--[a-z-]+", text_of_flags))
    assert documented == {name: flags(command) for name, command in commands(typer.main.get_command(command_line()))}


def test_arguments_are_written_as_the_help_does():
    """The usages in the table have the same arguments as the help, in the same order."""
    usages = {usage.strip("`") for usage, _, _ in table("Commands")}
    for name, command in commands(typer.main.get_command(command_line())):
        arguments = [written(item) for item in command.params if item.param_type_name == "argument"]
        assert " ".join(["sowstream", name, *arguments]) in usages


def written(argument: Any) -> str:
    """An argument as a usage has it: in brackets if it may be left out, with dots if there may be several."""
    name = argument.metavar if argument.required else f"[{argument.metavar}]"
    return f"{name}..." if argument.nargs != 1 else name


def test_every_setting_is_in_the_readme_with_its_default():
    """The README's table of settings lists exactly the settings with their defaults."""
    documented = {name.strip("`"): default for name, default, _ in table("Settings")}
    assert documented == dict(settings(Config))


def test_exit_codes_are_in_the_readme():
    """The exit codes in the README are those in the docstring of the module that returns them."""
    import processor.cli.output as module

    promised = set(re.findall(r"(\d+) \w", (module.__doc__ or "").split("Exit codes:")[1]))
    assert {code for code, _ in table("Exit codes")} == promised
