"""What all parts of a crawl use."""

from collections.abc import Callable
from dataclasses import dataclass

from scrapy import Spider

from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.runtime import Runtime
from scrapy_bloom.settings import BloomSettings


@dataclass(frozen=True, slots=True)
class Context:
    """What all parts of a crawl use.

    Args:
        settings: the crawl's.
        engine: Scrapy's engine.
        report: counts and warns.
        runtime: time and chance.
        spider: the spider; None if the crawler does not know it.
    """

    settings: BloomSettings
    engine: EngineAdapter
    report: Report
    runtime: Runtime
    spider: Spider | None

    @property
    def clock(self) -> Callable[[], float]:
        """Returns seconds that never go back."""
        return self.runtime.monotonic

    @property
    def token(self) -> Callable[[int], str]:
        """Returns so many random bytes as hexadecimal text."""
        return self.runtime.token
