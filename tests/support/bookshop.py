"""The category of books.toscrape.com that README.md crawls, served by this machine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.serving import serving

BOOKS = ["sharp-objects_997", *(f"book-{number}_{number}" for number in range(31))]
#: Books on the first of two listings.
FIRST = 20


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None: ...


@contextmanager
def serve_bookshop(directory: Path) -> Iterator[str]:
    """Write the pages into a directory, and serve them; yield the address."""
    catalogue = directory / "catalogue"
    category = catalogue / "category" / "books" / "mystery_3"
    category.mkdir(parents=True)
    next_page = '<li class="next"><a href="page-2.html">next</a></li>'
    (category / "index.html").write_text(_listing(BOOKS[:FIRST]) + next_page)
    (category / "page-2.html").write_text(_listing(BOOKS[FIRST:]))
    for book in BOOKS:
        (catalogue / book).mkdir()
        (catalogue / book / "index.html").write_text(f"<h1>{book}</h1>")
    handler = partial(_Handler, directory=directory)
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def _listing(books: Sequence[str]) -> str:
    links = (f'<a href="../../../{book}/index.html">{book}</a>' for book in books)
    return "".join(f"<article><h3>{link}</h3></article>" for link in links)
