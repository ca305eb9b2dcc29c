"""A page in headless Chromium, with the network off."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

needs_browser = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")


def browse(page: Path, folder: Path, *more: str) -> tuple[str, list[str]]:
    """Open a page in headless Chromium with the network off; return its DOM and what the console said."""
    done = subprocess.run(
        [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
            "--no-first-run", "--proxy-server=127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--v=0", *more, "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def texts_of_boxes(pictures: list[str], folder: Path) -> tuple[int, list[str]]:
    """Draw SVG pictures in a browser; return how many texts stand in boxes and labels, and those that leave theirs."""
    script = """<script>
    const wrong = [];
    let seen = 0;
    for (const text of document.querySelectorAll('.box text, .label text')) {
      const inner = text.getBBox(), outer = text.parentNode.querySelector('rect').getBBox();
      seen += 1;
      if (inner.x < outer.x || inner.x + inner.width > outer.x + outer.width) wrong.push(text.textContent);
    }
    document.title = seen + ' texts, outside: ' + wrong.join('|');
    </script>"""
    page = folder / "page.html"
    page.write_text(f"<meta charset=utf-8>{''.join(pictures)}{script}")
    dom, _ = browse(page, folder)
    found = re.search(r"<title>(\d+) texts, outside: (.*?)</title>", dom)
    assert found, dom[:500]
    return int(found[1]), [text for text in found[2].split("|") if text]
