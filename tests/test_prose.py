"""Docstrings and pages stay plain: few clauses on `what` or `tell`, and no word that the style guide forbids.

`python -m tests.prose PATH` lists the clauses to rewrite. Not counted are `beside`, `whole`, `given`, `known`, `made`
and `found`: most of their uses are good English, so their misuse as names is left to reviews.
"""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT
from tests.prose import Prose, measure

_CLAUSES_MIN = 50
"""Clauses below which a page is only measured with the others: one clause of thirty is three per cent."""


def excess(prose: Prose, *, what_max: float, tell_max: float) -> list[str]:
    """The excess clauses and every forbidden word; empty if the limits are kept."""
    clauses = max(prose.clauses, 1)
    lines = list(prose.forbidden)
    if len(prose.what) > what_max * clauses:
        lines += [f"what in {len(prose.what) / clauses:.1%} of the clauses, at most {what_max:.0%}:", *prose.what]
    if len(prose.tell) > tell_max * clauses:
        lines += [f"tell in {len(prose.tell) / clauses:.1%} of the clauses, at most {tell_max:.0%}:", *prose.tell]
    return lines


def docstrings(*folders: str) -> Prose:
    """The figures of the docstrings in some folders, without their pages."""
    return measure([path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))])


def test_the_docstrings_of_the_product_are_plain():
    """At most 3 % of the product's clauses are built on `what` and 1 % on `tell`, and no forbidden word occurs."""
    assert excess(docstrings("processor", "spark_integration"), what_max=0.03, tell_max=0.01) == []


def test_the_docstrings_of_the_tests_are_plain():
    """At most 5 % of the tests' clauses are built on `what` and 3 % on `tell`, and no forbidden word occurs."""
    assert excess(docstrings("tests"), what_max=0.05, tell_max=0.03) == []


def test_the_pages_are_plain():
    """At most 5 % of all pages' clauses are built on `what` and 2 % on `tell`, and no forbidden word occurs."""
    assert excess(measure(PAGES), what_max=0.05, tell_max=0.02) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_plain(page: Path):
    """Each longer page keeps the limits of all pages by itself."""
    prose = measure([page])
    if prose.clauses >= _CLAUSES_MIN:
        assert excess(prose, what_max=0.05, tell_max=0.02) == []
    else:
        assert prose.forbidden == []
