"""Every link of a page leads to a file, and every anchor to a heading of it."""

import re
from collections.abc import Iterator
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
