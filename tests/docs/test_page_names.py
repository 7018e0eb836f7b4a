"""Every page names what exists: links, headings, paths, commands, options, settings, targets and metrics."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from pydantic import BaseModel

from processor.cli.main import command_line
from processor.config import Config
from tests.docs.pages import PAGES, ROOT
from tests.test_docs import commands, section_of

FOLDERS = ("processor", "spark_integration", "tests", "deploy", "schemas", ".github")
CODE = (".py", ".pyx", ".pxd", ".js", ".ts", ".json", ".yaml", ".tpl", ".toml", ".xml", ".properties")
FOREIGN = frozenset(
    (
        *("ByLogicalTableRouter", "AvroConverter", "IntegerConverter", "LongConverter"),  # Debezium's and Connect's
        *("StringConverter", "RegexRouter", "RecordIsTombstone", "RecordTooLargeException"),
        *("stored_as_scd_type", "ignore_null_updates"),  # Databricks'
        *("start_timer", "stop_timer", "rate_max_gap"),  # AMPS'
        *("post_fork", "tcache_count", "produce_batch"),  # gunicorn's, glibc's, librdkafka's
        *("my_package.py", "test_my_package.py", "CountVisits", "count_visits", "msk_iam"),  # a reader's own plug-ins
        *(
            "orders_7",
            "by_number",
            "from_orders",
            "sowstream_queue_messages_total",
        ),  # topics of examples, a metric's full name
        *("STATE_DIR/APPLICATION_ID/TOPIC", "topic/partition", "topic/partition/offset", "-/qty"),  # forms of a text
        *("kafka.strimzi.io/v1beta2", "AES/CTR/NoPadding", "AES/GCM/NoPadding"),
        *("./sowstream.yaml", "build/benchmarks/figures.json"),  # files that commands read and write
        *("sowstream/clock_epochs.json", "_sowstream/incomplete"),
    )
)
"""Paths and names on pages that are not this repository's."""


@cache
def files() -> list[str]:
    """The files of the repository, from its folder; those of symbolic links included."""
    places = (ROOT / folder for folder in (*FOLDERS, ".ci", ".locks", "deploy/grafana", "deploy/prometheus"))
    paths = [path for place in places for path in place.rglob("*") if "node_modules" not in path.parts]
    return [str(path.relative_to(ROOT)) for path in (*ROOT.glob("*"), *paths) if path.is_file()]


@cache
def endings() -> set[str]:
    """Every part of a path to a file or folder, with as many of its folders as a page may name."""
    parts = (tuple(name.split("/")) for name in files())
    return {"/".join(path[i:j]) for path in parts for i in range(len(path)) for j in range(i + 1, len(path) + 1)}


@cache
def words() -> set[str]:
    """The words of all code, and the names of its files."""
    texts = ((ROOT / name).read_text(encoding="utf-8") for name in files() if name.endswith(CODE))
    return {word for text in texts for word in re.findall(r"\w+", text)} | {Path(name).stem for name in files()}


def code(page: Path) -> Iterator[str]:
    """The texts between backticks in the lines of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    yield from re.findall(r"`([^`\n]+)`", text)


def is_path_of_files(path: str) -> bool:
    """Return whether files or a folder have this path or its end; `*` stands for a part of a name."""
    if "*" not in path:
        return path in endings()
    pattern = re.compile(re.escape(path).replace(r"\*", "[^/]*") + "$")
    return any(pattern.search(name) for name in files())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, by GitHub's rules."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)).lower() for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


def links(page: Path) -> Iterator[str]:
    """The targets of a page's links inside the repository."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path):
    """The file of each relative link exists, and the heading of each anchor."""
    broken = []
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


PATH = re.compile(r"[\w.\-]+(?:/[\w.\-*]+)+|\w+\.(?:py|pyx|js)")
NAME = re.compile(r"\b(?:[A-Z][a-z0-9]+){2,}\b|\b[a-z]+(?:_[a-z0-9]+)+\b")
HISTORY = ROOT / "CHANGELOG.md"
"""The one page that names what is no more."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page != HISTORY], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_path_and_name_of_code_on_a_page_exists(page: Path):
    """Each path in backticks is one of the repository, and each class, function or setting is a word of its code."""
    paths = {text.rstrip("/") for text in code(page) if PATH.fullmatch(text.rstrip("/"))} - FOREIGN
    names = {name for text in code(page) for name in NAME.findall(text)} - FOREIGN
    assert sorted(path for path in paths if not is_path_of_files(path)) == []
    assert sorted(names - words()) == []


TRUE_PAGES = [page for page in PAGES if page != HISTORY]
CALL = re.compile(r"(?<![\w./<?-])sowstream (?:-v )?(?P<words>[a-z][^`\n|&;#)]*)")
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"--?[a-z][a-z-]*")
SETTING = re.compile(r"[a-z_]+(?:\.[a-z_]+)+")
METRIC = re.compile(r"\bsowstream_[a-z0-9_]+\b")
TARGET = re.compile(r"\bmake ([a-z-]+)\b")


def fences(page: Path, *languages: str) -> Iterator[str]:
    """The blocks of a page in these languages."""
    for match in FENCE.finditer(page.read_text(encoding="utf-8")):
        if match["language"] in languages:
            yield match["text"]


def shown(page: Path) -> Iterator[str]:
    """The lines of shell of a page, each with its continuation, and the texts between backticks."""
    for block in fences(page, "", "sh", "bash", "console"):
        yield from block.replace("\\\n", " ").splitlines()
    yield from code(page)


@cache
def options() -> dict[str, set[str]]:
    """The options of each command, by its name; a group of commands has none."""
    result = {}
    for name, command in commands(typer.main.get_command(command_line())):
        result[name] = {text for option in command.params for text in (*option.opts, *option.secondary_opts)}
        result.setdefault(name.split()[0], set())
    return result


def untrue_calls(text: str) -> Iterator[str]:
    """The commands in a line that do not exist, and their options that do not."""
    for call in CALL.finditer(text.partition(" #")[0]):
        name, *rest = call["words"].split()
        if rest and f"{name} {rest[0]}" in options():
            name = f"{name} {rest[0]}"
        if name not in options():
            yield call[0]
            continue
        given = {option for word in rest for option in OPTION.findall(word) if word.lstrip("[(").startswith("-")}
        yield from (f"{call[0]}: {option}" for option in given - options()[name] - {"--help"})


def has_setting(model: type[BaseModel], path: list[str]) -> bool:
    """Return whether a section of the settings has a setting; the names of topics and the like are any word."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    if path[0] not in fields:
        return False
    field = fields[path[0]]
    inner, is_mapping = section_of(field), "dict" in str(field.annotation)
    if len(path) == 1:
        return True
    if inner is None:
        return is_mapping and len(path) == 2
    return has_setting(inner, path[1:]) or (is_mapping and (len(path) == 2 or has_setting(inner, path[2:])))


@pytest.mark.parametrize("page", TRUE_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_option_setting_and_target_of_a_page_exists(page: Path) -> None:
    """A reader who types what the page says is not told that there is no such thing."""
    texts = list(shown(page))
    assert [untrue for text in texts for untrue in untrue_calls(text)] == []
    sections = {name for name, field in Config.model_fields.items() if section_of(field) is not None} - {"kafka"}
    dotted = {text for text in code(page) if SETTING.fullmatch(text) and text.split(".")[0] in sections}
    # A file, and a program of `make program NAME=gateway.fanout`, look like a setting.
    settings = {text for text in dotted if not {text, text.replace(".", "/") + ".py"} & endings()}
    assert sorted(text for text in settings if not has_setting(Config, text.split("."))) == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {target for text in texts for target in TARGET.findall(text)}
    assert sorted(target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)) == []


def trees(page: Path) -> Iterator[dict[str, Any]]:
    """The blocks of YAML that are whole sections of settings."""
    for block in fences(page, "yaml"):
        tree = yaml.safe_load(block)
        if isinstance(tree, dict) and tree.keys() <= Config.model_fields.keys():
            yield tree


@cache
def metrics() -> set[str]:
    """The metrics in the tables of the two pages that other tests compare with the code."""
    pages = ("processor/docs/reference/metrics.md", "spark_integration/pipeline/README.md")
    return {name for page in pages for name in METRIC.findall((ROOT / page).read_text(encoding="utf-8"))}


@pytest.mark.parametrize("page", TRUE_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_metric_and_every_block_of_settings_of_a_page_is_right(page: Path) -> None:
    """A metric has a row in a table or is a word of the code, and a block of settings loads as it stands."""
    named = {re.sub("_(bucket|sum|count)$", "", name) for name in METRIC.findall(page.read_text(encoding="utf-8"))}
    assert sorted(named - metrics() - words() - FOREIGN) == []
    for tree in trees(page):
        Config.model_validate(tree)


def test_a_wrong_name_on_a_page_is_found() -> None:
    """The check refuses a command, an option and a setting that do not exist."""
    assert [*untrue_calls("sowstream frobnicate orders")] == ["sowstream frobnicate orders"]
    (untrue,) = untrue_calls("sowstream sow orders --filtre x --filter y")
    assert untrue.endswith(": --filtre")
    assert not has_setting(Config, ["runtime", "stuck_after_s"])
    assert has_setting(Config, ["runtime", "stuck_timeout_s"])
    assert has_setting(Config, ["topics", "orders", "partitions"])
    with pytest.raises(ValueError, match="ky"):
        Config.model_validate({"topics": {"orders": {"ky": ["/id"]}}})
