"""The glossary has every term that a page introduces."""

import re
from pathlib import Path

from tests.docs.pages import page

ROOT = Path(__file__).parents[2]
TERMS = re.findall(r"^\| \*\*([^*]+)\*\* \|", page("glossary.md"), re.MULTILINE)
_BOLD = re.compile(r"(?<=\S )(?<!- )(?<!\| )\*\*((?:SOW|[a-z])[\w-]*(?: [\w-]+){0,3})\*\*")


def test_every_bold_term_of_the_pages_is_explained():
    """A bold term in the middle of a sentence, on the front page or in `processor/`, has a row of the glossary."""
    names = {name.strip("()").lower() for term in TERMS for name in (term, *re.split(r" (?=\()", term))}
    pages = [
        ROOT / "README.md",
        *(page for page in (ROOT / "processor").rglob("*.md") if "node_modules" not in page.parts),
    ]
    introduced = {term.lower(): str(path) for path in pages for term in _BOLD.findall(path.read_text(encoding="utf-8"))}
    assert "sow topic" in introduced
    assert {term: path for term, path in introduced.items() if term not in names} == {}


def test_the_terms_are_in_alphabetical_order():
    """Each term occurs once, in alphabetical order."""
    assert sorted(set(TERMS), key=str.lower) == TERMS
