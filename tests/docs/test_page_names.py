"""Every page names what exists: the files and headings of its links, the paths and the names of code in backticks."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("processor", "spark_integration", "tests", "deploy", "schemas", ".github")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md") if "node_modules" not in page.parts),
    ],
)

CODE = (".py", ".pyx", ".pxd", ".js", ".ts", ".json", ".yaml", ".tpl", ".toml", ".xml", ".properties")
FOREIGN = frozenset(
    (
        *("ByLogicalTableRouter", "AvroConverter", "IntegerConverter", "LongConverter"),  # Debezium's and Connect's
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
