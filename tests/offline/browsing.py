"""Pages as a browser and a reader see them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

_BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page(HTMLParser):
    """Checks that tags are closed in order, and that nothing is fetched or run."""

    _VOID = ("meta", "br", "link", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object")
        assert not any(name in ("src", "href", "onclick") for name, _ in attrs)
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def words_of(page: Path) -> str:
    """The text of a page that fetches and runs nothing."""
    text = page.read_text(encoding="utf-8")
    assert "http" not in text.replace("http-equiv", "") and "url(" not in text and "@import" not in text
    return " ".join(Page(text).words)


def fits(page: Path, width: int) -> None:
    """Assert that nothing sticks out of a window of this width, measured by headless Chromium."""
    if _BROWSER is None:
        pytest.skip("no Chromium here")
    # The page itself has no script, so a copy of it gets one.
    measure = "<script>document.title='w'+document.documentElement.scrollWidth+' '+innerWidth</script></body>"
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, "page.html")
        copy.write_text(page.read_text(encoding="utf-8").replace("</body>", measure), encoding="utf-8")
        done = subprocess.run(
            [_BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={scratch}/profile",
             f"--window-size={width},2000", "--dump-dom", copy.as_uri()],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    needed, there = map(int, done.stdout.split("<title>w")[1].split("<")[0].split())
    assert needed <= there
