"""``python -m tools.terminal``: record docs/terminal.svg, a terminal in which a crawl is killed.

It makes the project of the tutorial with the settings of README.md, and runs real crawls.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Event, Thread
from typing import Any

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "terminal.svg"
COLUMNS = 66
#: Articles at first, of which so many are served before the kill, and later.
FIRST, SERVED, LATER = 110, 60, 113
CRAWL = [sys.executable, "-m", "scrapy", "crawl", "articles"]
#: Settings of the recording alone: a delay that gives time for a kill, and short lines.
EXTRA = 'DOWNLOAD_DELAY = 0.03\nLOG_FORMAT = "%(message)s"\nLOG_LEVEL = "INFO"\n'


def main() -> None:
    """Crawl, kill, crawl again, and write the picture."""
    console = Console(record=True, width=COLUMNS, file=StringIO())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with _magazine(folder) as (address, is_halfway):
            _make_project(folder, address)
            _publish(folder, FIRST)
            _show(console, "scrapy crawl articles 2> crawl.log &")
            with subprocess.Popen(CRAWL, cwd=folder, stderr=subprocess.DEVNULL) as crawl:
                is_halfway.wait()
                crawl.send_signal(signal.SIGKILL)
            _show(console, "kill -9 $!", "in the middle of 110 articles")
            _crawl(console, folder)
            _publish(folder, LATER)
            _show(console, f"python3 magazine.py {LATER}", "publish three more")
            _crawl(console, folder)
    # Its fonts would be loaded from another site.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="news"), flags=re.DOTALL)
    PICTURE.write_text(drawn, "utf-8")


def _blocks(page: str, start: str) -> str:
    """Return the first Python block of a page that starts like that, without this line."""
    found = re.search(
        rf"```python\n# {start}\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL
    )
    assert found, f"{page} has no {start}"
    return found[1]


def _make_project(folder: Path, address: str) -> None:
    command = [*CRAWL[:3], "startproject", "news", "."]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    tutorial = "docs/tutorial/first-crawl.md"
    (folder / "magazine.py").write_text(_blocks(tutorial, "magazine.py"), "utf-8")
    spider = _blocks(tutorial, "news/spiders/articles.py")
    spider = spider.replace("http://127.0.0.1:8000", address)
    (folder / "news/spiders/articles.py").write_text(spider, "utf-8")
    with (folder / "news/settings.py").open("a") as settings:
        settings.write(_blocks("README.md", "settings.py") + EXTRA)


def _publish(folder: Path, count: int) -> None:
    subprocess.run([sys.executable, "magazine.py", str(count)], cwd=folder, check=True)


@contextmanager
def _magazine(folder: Path) -> Iterator[tuple[str, Event]]:
    """Serve the magazine; yield its address, and what is set when the kill is due."""
    is_halfway, articles = Event(), set[str]()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            articles.update([self.path] if "article" in self.path else [])
            if len(articles) >= SERVED:
                is_halfway.set()

    pages = partial(Handler, directory=os.fspath(folder / "magazine"))
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", is_halfway
        server.shutdown()


def _crawl(console: Console, folder: Path) -> None:
    _show(console, "scrapy crawl articles 2>&1 | grep Bloom")
    log = subprocess.run(CRAWL, cwd=folder, check=True, capture_output=True, text=True).stderr
    for line in re.findall(r"^Bloom filter '.*", log, re.MULTILINE):
        text = Text(re.sub(r"embedded:\S+", "embedded:...", line))
        text.highlight_regex(r"\d+ new|\d+ picked up|\d+ URLs|\d+ pending requests", "bold green")
        console.print(text)


def _show(console: Console, command: str, comment: str = "") -> None:
    console.print(
        Text.assemble(("$ ", "bold"), (command, "bold"), (f"  # {comment}" * bool(comment), "dim"))
    )


if __name__ == "__main__":
    main()
