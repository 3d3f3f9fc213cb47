"""Write the magazine into a directory, publish stories, and say what a perfect crawl fetches."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from example_site import pages, text, urls
from example_site.stories import Story

#: How many stories the magazine starts with: 38 in each section.
STORIES = 304
#: Stands for `http://host:port` in files that need whole URLs; the server replaces it.
SITE_URL = "{{SITE_URL}}"

_PER_LISTING = 12
_PER_TOPIC = 30
#: Holds the number of stories and the redirects.
STATE = "site.json"
_SITEMAP_NAMESPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"


@dataclass(frozen=True)
class Truth:
    """What a crawl that follows every link, and robots.txt, meets; as canonical paths and queries.

    Attributes:
        stories: Articles: they are written once, and need to be fetched once.
        hubs: Listings: they change whenever a story is published, so each crawl needs them.
        sitemaps: The sitemap index and the sitemaps.
        redirects: Old addresses, and where they lead to.
        dead: Links to pages that are gone (404).
        forbidden: Linked pages that robots.txt keeps a crawler out of: the way into the calendar.
    """

    stories: frozenset[str]
    hubs: frozenset[str]
    sitemaps: frozenset[str]
    redirects: dict[str, str]
    dead: frozenset[str]
    forbidden: frozenset[str]

    @property
    def lasting(self) -> frozenset[str]:
        """What never changes, so that one look at it is enough: all but the listings."""
        return self.stories | self.dead | frozenset(self.redirects)

    def crawl(self, known: "Truth | None" = None) -> frozenset[str]:
        """Every URL that a crawl by links should fetch, each of them once.

        Args:
            known: What an earlier crawl found, and need not be fetched again; None for nothing.
        """
        lasting = self.lasting - known.lasting if known else self.lasting
        return lasting | self.hubs | {"/robots.txt"}


@dataclass(frozen=True)
class Site:
    """The magazine at one moment: its first `count` stories are published.

    Args:
        directory: Where its files are.
        count: Number of stories, from 1 on.
    """

    directory: Path
    count: int

    @classmethod
    def build(cls, directory: Path, count: int = STORIES) -> "Site":
        """Write a new magazine."""
        site = cls(directory, count)
        site._write()
        return site

    @classmethod
    def open(cls, directory: Path) -> "Site":
        """The magazine that is in a directory already."""
        return cls(directory, json.loads((directory / STATE).read_text())["stories"])

    def publish(self, count: int) -> "Site":
        """Add new stories, and write what changes with them: listings and sitemaps.

        Returns:
            The magazine as it is now.
        """
        return self.build(self.directory, self.count + count)

    def truth(self) -> Truth:
        """What a perfect crawl fetches, and what else it meets."""
        stories = self._newest_first()
        return Truth(
            stories=frozenset(story.path for story in stories),
            hubs=frozenset({*_hubs(stories), "/calendar"}),
            sitemaps=frozenset(_sitemaps(stories)),
            redirects=_redirects(stories),
            dead=frozenset({"/jobs", *(story.gone_path for story in stories if story.gone_path)}),
            forbidden=frozenset({"/calendar?month=2025-12", "/calendar?month=2026-02"}),
        )

    def _newest_first(self) -> list[Story]:
        return [Story(number) for number in reversed(range(self.count))]

    def _write(self) -> None:
        stories = self._newest_first()
        files = {story.path: pages.story(story) for story in stories}
        files |= _hubs(stories) | _sitemaps(stories) | {"/robots.txt": _robots()}
        for url, content in files.items():
            name = urls.file_name(url)
            assert name, url
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        state = {"stories": self.count, "redirects": _redirects(stories)}
        (self.directory / STATE).write_text(json.dumps(state, indent=1, sort_keys=True))


def _hubs(stories: Sequence[Story]) -> dict[str, str]:
    """The pages that list stories, by canonical URL."""
    by_section, by_year, by_topic = defaultdict(list), defaultdict(list), defaultdict(list)
    for story in stories:
        by_section[story.section].append(story)
        by_year[story.section, story.published.year].append(story)
        for topic in story.topics:
            by_topic[topic].append(story)
    archives = [urls.archive(section, year) for section, year in by_year]
    hubs = {"/": pages.home(stories[:_PER_LISTING], archives), "/topics/": pages.topics()}
    for section in text.SECTIONS:
        hubs |= _listings(section, by_section[section])
    for (section, year), found in by_year.items():
        hubs[urls.archive(section, year)] = pages.archive(section, year, found)
    for topic in text.TOPICS:
        hubs[f"/topics/{topic}/"] = pages.topic(topic, by_topic[topic][:_PER_TOPIC])
    return hubs


def _listings(section: str, stories: Sequence[Story]) -> dict[str, str]:
    starts = range(0, max(len(stories), 1), _PER_LISTING)
    return {
        urls.listing(section, number): pages.listing(
            section, number, len(starts), stories[start : start + _PER_LISTING]
        )
        for number, start in enumerate(starts, 1)
    }


def _redirects(stories: Sequence[Story]) -> dict[str, str]:
    moved = [story.moved_story for story in stories if story.moved_story]
    return {story.old_path: story.path for story in moved}


def _sitemaps(stories: Sequence[Story]) -> dict[str, str]:
    """A sitemap for each year, and their index. The listings are in none, as on many sites."""
    by_year = defaultdict(list)
    for story in stories:
        by_year[story.published.year].append(story)
    sitemaps = {
        f"/sitemap-{year}.xml": _sitemap("urlset", "url", [story.path for story in found])
        for year, found in by_year.items()
    }
    return {"/sitemap.xml": _sitemap("sitemapindex", "sitemap", list(sitemaps))} | sitemaps


def _sitemap(root: str, entry: str, paths: Sequence[str]) -> str:
    entries = "\n".join(f"<{entry}><loc>{SITE_URL}{path}</loc></{entry}>" for path in paths)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<{root} xmlns="{_SITEMAP_NAMESPACE}">\n{entries}\n</{root}>\n'
    )


def _robots() -> str:
    """Only the months of the calendar are forbidden: there is no last one."""
    return f"User-agent: *\nDisallow: /calendar?\n\nSitemap: {SITE_URL}/sitemap.xml\n"
