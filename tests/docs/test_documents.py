"""What the documents say of each other and of the code: links lead somewhere, and decisions can be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "adr"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_LINK = re.compile(r"\]\(([^)#\s]+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(document: Path) -> None:
    targets = [link for link in _LINK.findall(document.read_text()) if "://" not in link]
    missing = [link for link in targets if not (document.parent / link).exists()]
    assert missing == []


def test_every_decision_has_a_number_of_its_own_and_is_listed_under_its_title() -> None:
    expected = []
    for number, path in enumerate(sorted(DECISIONS.glob("0*.md"))):
        title = path.read_text().splitlines()[0].removeprefix(f"# {number:04}. ")
        assert path.name.startswith(f"{number:04}-"), f"{path.name}: the next number is {number:04}"
        expected.append(f"- [{number:04}]({path.name}): {title}")
    listed = [line for line in (DECISIONS / "README.md").read_text().splitlines() if line.startswith("- ")]
    assert expected[1:] == listed  # the first is the template


def test_every_page_is_named_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    unnamed = [page for page in pages if f"docs/{page})" not in readme.partition("## Read on")[2]]
    assert unnamed == []
