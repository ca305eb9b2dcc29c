"""What the documents say in bytes is what the code does, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mapreduce.keys import decode_key, encode_key

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def test_the_example_keys_in_the_page_on_formats_have_these_bytes() -> None:
    block = re.search(r"```\n(None .*?)```", (ROOT / "docs" / "formats.md").read_text(), re.DOTALL)
    assert block is not None
    lines = block[1].splitlines()
    assert len(lines) == 7
    for line in lines:
        written, shown = re.split(r"  +", line, maxsplit=1)
        key = eval(written)
        assert encode_key(key).hex(" ") == shown
        assert decode_key(bytes.fromhex(shown)) == key


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_pages_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
