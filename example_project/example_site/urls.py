"""One page, one URL; and the file in which the site keeps it."""

import re
from urllib.parse import urlencode

from w3lib.url import canonicalize_url


def canonical(url: str) -> str:
    """The one spelling of a page's path and query: parameters sorted, no fragment."""
    return canonicalize_url(url)


def archive(section: str, year: int, *, year_first: bool = False) -> str:
    """An archive page's URL. Real sites write parameters in any order, and so does this one."""
    parameters = [("section", section), ("year", str(year))]
    return "/archive?" + urlencode(parameters[::-1] if year_first else parameters)


def listing(section: str, page: int) -> str:
    """A section's listing; its first page has no number."""
    return f"/{section}/?page={page}" if page > 1 else f"/{section}/"


def file_name(url: str) -> str | None:
    """The file of a canonical URL, relative to the site's directory; None for a strange URL.

    `/hiking/?page=2` is in `hiking/index.page-2.html`: no character that a file system refuses.
    """
    path, _, query = url.partition("?")
    if not re.fullmatch(r"/(?:[\w-]+/)*[\w.-]*", path) or not re.fullmatch(r"[\w=&-]*", query):
        return None
    name = path[1:] + ("index" if path.endswith("/") else "")
    if query:
        name += "." + query.replace("=", "-").replace("&", ".")
    return name if name.endswith((".txt", ".xml")) else f"{name}.html"
