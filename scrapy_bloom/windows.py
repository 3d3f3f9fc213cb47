"""How long a request is remembered: for this run, or as long as the filter remembers."""

from scrapy import Request, Spider
from scrapy.spiders import SitemapSpider

#: The window of URLs that are remembered by this process for this run only.
RUN = "run"


def is_hub(request: Request, spider: Spider | None) -> bool:
    """Whether it is a start request or, reached from one, a further sitemap.

    Each run has to look at these again to find what is new.
    """
    # is_start_request travels along with meta=response.meta; depth tells the copies apart.
    if request.meta.get("is_start_request") and not request.meta.get("depth"):
        return True
    return isinstance(spider, SitemapSpider) and request.callback == spider._parse_sitemap  # noqa: SLF001
