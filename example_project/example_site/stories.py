"""The stories of the magazine: number n is the same story on every machine."""

from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from random import Random

from example_site import text

SEED = "fell-and-ford"
_FIRST_DAY = date(2023, 1, 2)
_DAYS_BETWEEN = 3
#: The first stories moved when the site was rebuilt; every 15th story still links an old address.
_MOVED = 20
#: Every 30th story, up to this many, links a page that is gone.
_GONE = 10


@dataclass(frozen=True)
class Story:
    """One article."""

    number: int

    @cached_property
    def section(self) -> str:
        return list(text.SECTIONS)[self.number % len(text.SECTIONS)]

    @cached_property
    def title(self) -> str:
        return text.title(Random(f"{SEED}:title:{self.number}"))

    @cached_property
    def topics(self) -> list[str]:
        return sorted(Random(f"{SEED}:topics:{self.number}").sample(text.TOPICS, 2))

    @cached_property
    def paragraphs(self) -> list[str]:
        random = Random(f"{SEED}:text:{self.number}")
        return [text.paragraph(random, self.section) for _ in range(random.randint(4, 7))]

    @property
    def published(self) -> date:
        return _FIRST_DAY + timedelta(days=_DAYS_BETWEEN * self.number)

    @cached_property
    def path(self) -> str:
        slug = self.title.lower().replace(" ", "-")
        return f"/{self.section}/{slug}-{self.number}"

    @property
    def every_second(self) -> bool:
        """Whether it is every second story of its section, for what varies from story to story."""
        return self.number // len(text.SECTIONS) % 2 == 1

    @property
    def related(self) -> list["Story"]:
        """Up to six earlier stories: never later ones, so that a story's page stays as it is."""
        random = Random(f"{SEED}:related:{self.number}")
        earlier = random.sample(range(self.number), min(6, self.number))
        return [Story(number) for number in earlier]

    @property
    def moved_story(self) -> "Story | None":
        """The story that this one links by its old address."""
        target = self.number // 15
        return Story(target) if self.number % 15 == 0 and target < _MOVED else None

    @property
    def old_path(self) -> str:
        """Where the story was before the site was rebuilt."""
        return f"/2019/story.php?id={self.number}"

    @property
    def gone_path(self) -> str | None:
        """A page this story links that no longer exists."""
        index = self.number // 30
        return f"/shop/map-{index}" if self.number % 30 == 7 and index < _GONE else None
