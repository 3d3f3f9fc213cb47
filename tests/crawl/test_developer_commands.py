"""Scrapy's commands that are no crawl read and write nothing, whatever is pending and set."""

from pathlib import Path
from typing import Any

import pytest
from support.lab_commands import Called
from support.odd_site import Lab, LabOf, page, tree
from support.servers import contents

PAGES = 12
SPIDER = '''
from support.spiders import OddSpider

class Own(OddSpider):
    """Its contract is for scrapy check."""
    {body}

    async def start(self):
        # Up to Scrapy 2.18, the shell reads it.
        return
        yield

    def parse(self, response):
        """Follows all links.

        @url {url}/
        @returns requests 1
        """
        return self.links(response)
'''
NO_SERVER = "redis://127.0.0.1:1/0"
#: Where a project sets LOGSTATS_INTERVAL; the shell has a value of its own.
INTERVAL = {"LOGSTATS_INTERVAL": 30.0}
PLACES: dict[str, dict[str, Any]] = {
    "nowhere": {},
    "settings.py": {"settings": INTERVAL},
    "custom_settings": {"body": f"custom_settings = {INTERVAL}"},
}
FETCH = "fetch(scrapy.Request(response.url))"
TWICE = f"[{FETCH}, {FETCH}, response.status]"


@pytest.fixture(scope="module")
def lab(lab_of: LabOf) -> Lab:
    """A site of which some pages are crawled, and others pending: their crawl was killed."""
    lab = lab_of({**tree(PAGES), "/robots.txt": page()})
    lab.kill_midway(PAGES // 2)
    assert lab.recorded()
    assert lab.claims()
    return lab


def scrapy(
    lab: Lab,
    directory: Path,
    *arguments: str,
    settings: dict[str, Any] | None = None,
    body: str = "",
) -> Called:
    """Call Scrapy in a project; no filter is read or written, and nothing else is fetched."""
    stored, before = contents(lab.client), lab.site.hits()
    settings = {
        "SPIDER_MODULES": ["odd_spider"],
        "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
        "BLOOM_REDIS_URL": lab.redis_url,
        "TELNETCONSOLE_ENABLED": False,
        **(settings or {}),
    }
    (directory / "scrapy.cfg").write_text("[settings]\ndefault = project_settings\n")
    lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
    (directory / "project_settings.py").write_text("".join(lines))
    (directory / "odd_spider.py").write_text(SPIDER.format(body=body, url=lab.site.url))
    done = Called(*lab.nursery.run([*arguments], directory, environment={"BROWSER": "true"}))
    assert "Traceback" not in done.err, done.err
    assert contents(lab.client) == stored
    assert not {path for path in lab.site.hits() - before if path not in ("/", "/robots.txt")}
    return done


@pytest.mark.parametrize("place", PLACES)
def test_the_shell_fetches_what_it_is_asked_for_wherever_the_project_sets_its_interval(
    lab: Lab, tmp_path: Path, place: str
) -> None:
    """It took over all pending pages, which no later crawl got."""
    command = ("shell", "--spider", "odd", f"{lab.site.url}/", "-c", TWICE)
    done = scrapy(lab, tmp_path, *command, **PLACES[place])
    assert "[None, None, 200]" in done.out
    assert "Bloom filter: off in a developer command, so the server isn't used" in done.err


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (("fetch", "--spider", "odd", "URL"), "<html>"),
        (("parse", "--spider", "odd", "URL"), "/0>"),
        (("check",), ""),
    ],
    ids=lambda given: " ".join(given[:2]) if isinstance(given, tuple) else "",
)
def test_no_command_uses_the_server(
    lab: Lab, tmp_path: Path, command: tuple[str, ...], answer: str
) -> None:
    """One that connected to it would fail, and what is on it may be read by none."""
    arguments = [f"{lab.site.url}/" if text == "URL" else text for text in command]
    settings = {**INTERVAL, "BLOOM_REDIS_URL": NO_SERVER}
    done = scrapy(lab, tmp_path, *arguments, settings=settings)
    assert answer in done.out
    assert done.code == 0
