"""The pages of the site, for MkDocs (mkdocs.yml): all of the repository, at the places where they are.

MkDocs reads pages from one folder below its settings. Here they lie next to the code that they describe.
"""

import posixpath
import re
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parents[1]
_STYLE = ".ci/site.css"
_NO_PAGES = {".github/PULL_REQUEST_TEMPLATE.md"}
_LINK = re.compile(r"\]\(([^)#\s]+)[^)\s]*\)")
_SECTIONS = re.compile(r"^(?=## )", re.MULTILINE)
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^(?![-*|\s]|\d+\. ).+\n(?=[-*] |\d+\. |\|)", re.MULTILINE)
_LANGUAGE = re.compile(r"## (?:Python|Java|JavaScript|Go|Kafka's console)\b.*\n")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of one folder by the pages of the repository and what they link to, with the theme's files."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=_ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    pages = sorted({name for name in listing if (_ROOT / name).is_file()} - _NO_PAGES)
    others = {target for page in pages for target in _linked_files(page)} - {*pages}
    result = Files([file for file in files if file.src_dir != config.docs_dir])
    for name in (*pages, *sorted(others), _STYLE):
        file = File.generated(config, name, abs_src_path=str(_ROOT / name))
        # Hosts of static pages leave folders out that begin with a dot.
        file.dest_uri = file.dest_uri.removeprefix(".")
        result.append(file)
    return result


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Show sections of one purpose in several languages, which follow one another, as tabs."""
    # GitHub needs no empty line before a list or a table; MkDocs' Markdown does.
    parts = _FENCE.split(markdown)
    parts[::2] = [_BLOCK.sub(lambda match: match[0] + "\n", text) for text in parts[::2]]
    sections = _SECTIONS.split("".join(parts))
    runs = [[*run] for _, run in groupby(sections, key=lambda section: bool(_LANGUAGE.match(section)))]
    return "".join("".join(map(_tab, run) if len(run) > 1 and _LANGUAGE.match(run[0]) else run) for run in runs)


def _tab(section: str) -> str:
    """A section as a tab."""
    heading, _, text = section.partition("\n")
    lines = (f"    {line}" if line else line for line in text.split("\n"))
    return f'=== "{heading.removeprefix("## ")}"\n' + "\n".join(lines) + "\n"


def _linked_files(page: str) -> Iterator[str]:
    """The files of the repository that a page links to, and that may be no pages: pictures, schemas, programs."""
    text = re.sub(r"```.*?```", "", (_ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in _LINK.findall(text):
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        if ":" not in target and (_ROOT / name).is_file():
            yield name
