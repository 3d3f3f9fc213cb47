"""What the spiders bring home."""

from dataclasses import dataclass

from scrapy.http import TextResponse


@dataclass
class Story:
    """A story of the magazine."""

    url: str
    title: str
    published: str

    @classmethod
    def from_response(cls, response: TextResponse) -> "Story":
        """Read a story's page."""
        return cls(
            url=response.url,
            title=response.css("h1::text").get(default=""),
            published=response.css("main > p > time::text").get(default=""),
        )
