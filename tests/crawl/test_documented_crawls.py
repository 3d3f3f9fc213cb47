"""The first crawls of README.md and of the tutorial, as a reader does them."""

import json
import re
import shlex
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from example_site.build import STORIES, Site
from example_site.serve import serve
from support.bookshop import BOOKS, serve_bookshop
from support.crawling import run, run_scrapy
from support.pages import blocks, read

TUTORIAL = "docs/tutorial/first-crawl.md"
#: The site's address in the tutorial.
ADDRESS = "http://127.0.0.1:8000"


class Reader:
    """Does what a page says, in an empty directory.

    Args:
        directory: where the project is made.
        address: the site's, on the page.
        url: where the site is.
        site: its content, if a command publishes something.
    """

    def __init__(self, directory: Path, address: str, url: str, site: Site | None = None) -> None:
        self.directory, self._address, self._url, self._site = directory, address, url, site
        self.logs: list[str] = []

    def write(self, text: str) -> None:
        """Write the file that the first line of a block names, or append to it."""
        first, _, text = text.partition("\n")
        name = first.removeprefix("# ").removeprefix("append to ")
        before = (self.directory / name).read_text() if "append to" in first else ""
        text = before + text.replace(self._address, self._url)
        (self.directory / name).write_text(text)

    def run(self, line: str) -> None:
        """Run a command that belongs to the project."""
        if self._site and "example_site publish" in line:
            self._site = self._site.publish(int(line.rstrip(")").split()[-1]))
        words = shlex.split(line.replace(self._address, self._url), comments=True)
        if words[0] == "cd":
            self.directory /= words[1]
        if words[0] == "scrapy":
            done = self.scrapy(*words[1:])
            assert done.returncode == 0, done.stdout + done.stderr
            if words[1] == "crawl":
                self.logs.append(done.stderr)

    def scrapy(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        fast = ("-s", "DOWNLOAD_DELAY=0") if arguments[0] == "crawl" else ()
        return run_scrapy(*arguments, *fast, directory=self.directory)

    def follow(self, page: str) -> None:
        """Do what a page says; marked lines without a prompt are what the last crawl has logged."""
        for block in blocks(page, "python", "console", ""):
            if block.language == "python":
                if block.text.startswith("# "):
                    self.write(block.text)
                continue
            for part in re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE):
                lines = part.splitlines()
                if part.startswith("$ "):
                    self.run(lines.pop(0).removeprefix("$ "))
                if block.mark == "log" and lines:
                    assert_logged(lines, self.logs[-1])


def assert_logged(lines: list[str], log: str) -> None:
    """Each line was logged, in this order. ``...`` is any text."""
    pattern = r"(?:\n.*)+".join(
        ".*".join(re.escape(part.strip()) for part in line.split("...")) for line in lines
    )
    logged = "\n".join(line for line in log.splitlines() if "[scrapy_bloom" in line)
    assert re.search(pattern, logged), logged


# -- README.md --


def test_the_quickstart_is_what_happens(tmp_path: Path) -> None:
    """Its two runs write each book once; the next run fetches the one that was asked for again."""
    with serve_bookshop(tmp_path / "site") as url:
        newcomer = Reader(tmp_path, "https://books.toscrape.com", url)
        newcomer.follow("README.md")
        assert len(newcomer.logs) == 2
        assert titles(newcomer.directory / "items") == Counter(BOOKS)
        newcomer.run("scrapy crawl books")
        assert titles(newcomer.directory / "items") == Counter([*BOOKS, "sharp-objects_997"])


def titles(folder: Path) -> Counter[str]:
    """Count the items in all files of a folder."""
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    return Counter(json.loads(line)["title"] for line in lines)


# -- the first crawl --


def test_the_tutorial_is_what_happens(tmp_path: Path) -> None:
    site = Site.build(tmp_path / "magazine", count=STORIES)
    with serve(site.directory) as web:
        reader = Reader(tmp_path, ADDRESS, web.url, site)
        reader.follow(TUTORIAL)
    assert len(reader.logs) == 3
    counts = [
        len((reader.directory / f"{name}.jsonl").read_text().splitlines())
        for name in ("first", "second", "third")
    ]
    assert counts == [STORIES, 0, 3]


# -- half a year in a minute --


@pytest.mark.slow  # test_recrawl.py has such a half year
def test_the_table_of_half_a_year_is_what_the_demo_prints() -> None:
    done = run("demo.py")
    assert done.returncode == 0, done.stdout + done.stderr
    page = read("docs/tutorial/half-a-year-in-a-minute.md")
    rows = re.findall(r"^\| ([A-Z][a-z]+) \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == 7
    for month, cells in rows:
        (row,) = [line for line in done.stdout.splitlines() if line.startswith(f"│ {month}")]
        # Which duplicates are met depends on the order of pages, in the months with new ones.
        printed = [cell.strip() for cell in row.split("│")[2:-1]]
        documented = cells.split(" | ")
        assert printed[:3] + printed[4:] == documented[:3] + documented[4:]
        assert _number(printed[3]) == pytest.approx(_number(documented[3]), rel=0.05)


def _number(text: str) -> int:
    return int(text.replace(",", ""))
