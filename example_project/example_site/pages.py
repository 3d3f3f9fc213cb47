"""The magazine's pages as HTML. Everything here is a pure function."""

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from html import escape
from random import Random

from example_site import text, urls
from example_site.stories import Story

_NAME = "Fell &amp; Ford"
_FIRST_CALENDAR_MONTH = "2026-01"


def _link(url: str, label: str) -> str:
    return f'<a href="{escape(url)}">{escape(label)}</a>'


def _links(links: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{link}</li>" for link in links) + "\n</ul>"


def _story_links(stories: Iterable[Story]) -> str:
    return _links(
        f"{_link(story.path, story.title)} <time>{story.published}</time>" for story in stories
    )


def _section_links(anchor: str = "") -> list[str]:
    return [_link(f"/{section}/{anchor}", section.title()) for section in text.SECTIONS]


def page(title: str, crumbs: Sequence[str], content: str) -> str:
    """A whole page: the same navigation and footer around every content."""
    navigation = [_link("/", "Home"), *_section_links()]
    navigation += [_link("/topics/", "Topics"), _link("/calendar", "Calendar")]
    footer = [*_section_links("#listing"), _link("/jobs", "Work with us")]
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{escape(title)} | {_NAME}</title></head>
<body id="top">
<nav>{_links(navigation)}</nav>
<p class="breadcrumbs">{" &rsaquo; ".join([*crumbs, escape(title)])}</p>
<main>
<h1>{escape(title)}</h1>
{content}
</main>
<footer>{_links(footer)}<p>{_link("#top", "Back to top")}</p></footer>
</body>
</html>
"""


def home(latest: Sequence[Story], archives: Sequence[str]) -> str:
    return page("Stories from the hills", [], f"{_story_links(latest)}\n{_archive_links(archives)}")


def listing(section: str, number: int, last: int, stories: Sequence[Story]) -> str:
    """One page of a section's stories, newest first, with links to all its other pages."""
    pager = [_link(urls.listing(section, other), str(other)) for other in range(1, last + 1)]
    label = section.title() if number == 1 else f"{section.title()}, page {number}"
    content = f'<div id="listing">{_story_links(stories)}</div>\n<p>{" ".join(pager)}</p>'
    return page(label, [_link("/", "Home")], content)


def archive(section: str, year: int, stories: Sequence[Story]) -> str:
    crumbs = [_link("/", "Home"), _link(f"/{section}/", section.title())]
    return page(f"{section.title()} in {year}", crumbs, _story_links(stories))


def topics() -> str:
    links = _links(_link(f"/topics/{topic}/", topic.title()) for topic in text.TOPICS)
    return page("Topics", [_link("/", "Home")], links)


def topic(name: str, stories: Sequence[Story]) -> str:
    crumbs = [_link("/", "Home"), _link("/topics/", "Topics")]
    return page(name.title(), crumbs, _story_links(stories))


def story(item: Story) -> str:
    """A story: its text, and more links to what the reader has seen already than to what is new."""
    crumbs = [_link("/", "Home"), _link(f"/{item.section}/", item.section.title())]
    contents = [_link("#text", "The story"), _link("#related", "Read next")]
    body = "\n".join(f"<p>{escape(paragraph)}</p>" for paragraph in item.paragraphs)
    seen = [_link(f"/topics/{name}/", name.title()) for name in item.topics]
    seen.append(_link(f"http://offsite.invalid/partner/{item.number % 7}", "Our partner"))
    archives = [
        urls.archive(item.section, year, year_first=item.every_second)
        for year in range(Story(0).published.year, item.published.year + 1)
    ]
    content = f"""<p>Published <time>{item.published}</time></p>
{_links(contents)}
<div id="text">
{body}
{_broken_links(item)}
</div>
<div id="related">{_story_links(item.related)}</div>
{_links(seen)}
{_archive_links(archives)}"""
    return page(item.title, crumbs, content)


def calendar(month: str = _FIRST_CALENDAR_MONTH) -> str:
    """A month's events, with links to the months around it: these pages never end.

    Args:
        month: `YYYY-MM`.

    Raises:
        ValueError: There is no such month.
    """
    first = date.fromisoformat(f"{month}-01")
    day = Random(month).randint(1, 28)
    around = [first - timedelta(days=1), first + timedelta(days=31)]
    links = _links(_link(f"/calendar?month={other:%Y-%m}", f"{other:%B %Y}") for other in around)
    content = f"<p>Open evening on the {day}. of {first:%B}.</p>\n{links}"
    return page(f"Events in {first:%B %Y}", [_link("/", "Home")], content)


def _archive_links(archives: Iterable[str]) -> str:
    return _links(_link(url, "Archive") for url in archives)


def _broken_links(item: Story) -> str:
    """What time has done to the links of a site: some have moved, some lead nowhere."""
    links = []
    if item.moved_story:
        links.append(_link(item.moved_story.old_path, "An earlier story"))
    if item.gone_path:
        links.append(_link(item.gone_path, "Buy the map"))
    return _links(links) if links else ""
