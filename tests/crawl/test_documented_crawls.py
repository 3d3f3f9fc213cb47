"""The first crawl of the documentation, as a reader does it: files, commands and log lines."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from example_site.build import STORIES, Site
from example_site.serve import SiteServer, serve
from support.crawling import run, run_scrapy
from support.pages import Block, blocks, read

TUTORIAL = "docs/tutorial/first-crawl.md"
#: The site's address on the page.
ADDRESS = "http://127.0.0.1:8000"


class Reader:
    """Does what a page says, in an empty directory.

    Args:
        directory: where the project is made.
        web: the site.
        site: its content.
    """

    def __init__(self, directory: Path, web: SiteServer, site: Site) -> None:
        self.directory, self._web, self._site = directory, web, site
        self.logs: list[str] = []

    def write(self, text: str) -> None:
        """Write the file that the first line of a block names, or append to it."""
        first, _, text = text.partition("\n")
        name = first.removeprefix("# ").removeprefix("append to ")
        before = (self.directory / name).read_text() if "append to" in first else ""
        text = before + text.replace(ADDRESS, self._web.url)
        (self.directory / name).write_text(text)

    def run(self, line: str) -> None:
        """Run a command that belongs to the project."""
        if "example_site publish" in line:
            self._site = self._site.publish(int(line.rstrip(")").split()[-1]))
        words = shlex.split(line.replace(ADDRESS, self._web.url))
        if words[0] == "scrapy":
            done = run_scrapy(*words[1:], directory=self.directory)
            assert done.returncode == 0, done.stderr
            if words[1] == "crawl":
                self.logs.append(done.stderr)

    def follow(self, block: Block) -> None:
        """Do what a block says; a block of log lines is what the last crawl has logged."""
        if block.mark == "log":
            assert_logged(block.text.splitlines(), self.logs[-1])
        elif block.language == "python":
            self.write(block.text)
        else:
            for line in block.text.splitlines():
                self.run(line.removeprefix("$ "))


def assert_logged(lines: list[str], log: str) -> None:
    """The report has logged these lines, in this order, and no others. ``...`` is any text."""
    logged = [line for line in log.splitlines() if "[scrapy_bloom.crawl.report]" in line]
    assert len(logged) == len(lines), log
    for line, found in zip(lines, logged, strict=True):
        pattern = ".*".join(re.escape(part.strip()) for part in line.split("..."))
        assert re.search(pattern, found), f"{line}\n{found}"


# -- the first crawl --


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A reader who has done all that the tutorial says."""
    directory = tmp_path_factory.mktemp("reader")
    site = Site.build(directory / "magazine", count=STORIES)
    with serve(site.directory) as web:
        reader = Reader(directory, web, site)
        for block in blocks(TUTORIAL, "python", "console", ""):
            reader.follow(block)
        yield reader


def test_the_tutorial_is_what_happens(reader: Reader) -> None:
    """All blocks were followed by the fixture."""
    assert len(reader.logs) == 3
    counts = [
        len((reader.directory / f"{name}.jsonl").read_text().splitlines())
        for name in ("first", "second", "third")
    ]
    assert counts == [STORIES, 0, 3]


def test_the_readme_shows_the_same_logs(reader: Reader) -> None:
    """Its first block has two runs, the second block the end of the third."""
    marked = [block for block in blocks("README.md", "console") if block.mark == "log"]
    runs = [
        [line for line in run.splitlines() if line.startswith("[")]
        for block in marked
        for run in block.text.split("$ scrapy crawl articles\n")[1:]
    ]
    assert len(runs) == 3
    assert_logged(runs[0], reader.logs[0])
    assert_logged(runs[1], reader.logs[1])
    assert_logged(["remembers 336 URLs", *runs[2]], reader.logs[2])


def test_the_test_of_the_how_to_page_passes(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/how-to/test-your-spiders.md."""
    monkeypatch.chdir(reader.directory)
    names: dict[str, Any] = {}
    (code,) = [
        block.text
        for block in blocks("docs/how-to/test-your-spiders.md", "python")
        if "def test_" in block.text
    ]
    exec(code, names)
    names["test_second_run_fetches_no_article_again"](tmp_path)
    assert len((tmp_path / "1.jsonl").read_text().splitlines()) == STORIES + 3


# -- half a year in a minute --


@pytest.mark.slow  # the demo of a smaller site is in test_example_project.py
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
