"""Faults that simulated crawls by Scrapy itself have to find; the package once had several of them.

``PYTHONHASHSEED=0 python -m simulation.web_mutants --help``, from ``tests``.
"""

import sys

from simulation.mutants import Mutant, main

MUTANTS = (
    Mutant(
        "a CrawlSpider's requests are not stored, because of their link_text",
        "crawl/request_values.py",
        "if isinstance(value, base) and type(plain := base(value)) is base is not cls:",
        "if cls is base:",
        "scrapy-failing",
    ),
    Mutant(
        "a failed page of the window run is not tried again",
        "crawl/pages.py",
        "if kind is JobKind.CONFIRM:\n                job = replace(job, kind=JobKind.DONE)\n"
        "                also",
        "if kind in (JobKind.CONFIRM, JobKind.FAIL):\n"
        "                job = replace(job, kind=JobKind.DONE)\n                also",
        "scrapy-listings",
    ),
    Mutant(
        "what was claimed in a window that was removed is lost",
        "crawl/crawl.py",
        "        left = {*sorted({*noted}",
        "        noted = ()\n        left = {*sorted({*noted}",
        "scrapy-windows",
    ),
    Mutant(
        "the claim of a page that redirects to itself stays",
        "crawl/tracker.py",
        "            self._settler.ignore(offer.inherited)\n"
        "            self._settler.settle(claims, JobKind.RELEASE)",
        "            self._settler.ignore(offer.inherited)",
        "scrapy-calm",
    ),
    Mutant(
        "the target of a redirect is fetched again if its source was retried",
        "crawl/tracker.py",
        "successor.dont_filter &= any(item.startswith(KEPT) for _, item in flight.claims)",
        "pass",
        "scrapy-failing",
    ),
    Mutant(
        "requests from a queue on a disk, or in Redis, have lost their claims",
        "crawl/tracker.py",
        "claims = queued.pop() if queued else self._take_claims(request)",
        "claims = queued.pop() if queued else {}",
        "scrapy-kills",
    ),
    Mutant(
        "a page does not wait for what its errback has yielded",
        "crawl/outputs.py",
        "crawl.claims.tracker.yields(request) if crawl.claims else None",
        "crawl.claims.tracker.yields(request) "
        "if crawl.claims and not isinstance(response, Failure) else None",
        "scrapy-errbacks",
    ),
    Mutant(
        "a page that robots.txt disallows has failed",
        "crawl/tracker.py",
        "return JobKind.RELEASE if isinstance(result.value, IgnoreRequest) else JobKind.FAIL",
        "return JobKind.FAIL",
        "scrapy-calm",
    ),
    Mutant(
        "a request with dont_filter is not stored",
        "crawl/tracker.py",
        "        if request.dont_filter:\n            self._keep_once(request)",
        "        pass",
        "scrapy-errbacks",
    ),
    Mutant(
        "a page is recorded although a pipeline has raised for its item",
        "crawl/outputs.py",
        "for page in self._pages.get(id(response), ()):",
        "for page in ():",
        "scrapy-faults",
    ),
    Mutant(
        "a page is recorded before the feed with its item is stored",
        "crawl/delivery.py",
        "                    self._delivery.hold(page)",
        "                    pass",
        "scrapy-feeds",
    ),
    Mutant(
        "a feed that cannot be stored counts as stored",
        "crawl/delivery.py",
        "            self._failed.add(slot)",
        "            pass",
        "scrapy-feeds",
    ),
    Mutant(
        "a page that is gone has failed",
        "crawl/tracker.py",
        "result.status in self._crawled_statuses",
        "result.status < MISSING",
        "scrapy-calm",
    ),
)

if __name__ == "__main__":
    sys.exit(main(MUTANTS))
