"""Where stories go."""

import sqlite3
from typing import Any

from scrapy_bloom import Hold, hold

#: Rows of a transaction.
ROWS = 500


class SQLitePipeline:
    """Writes the table `stories` of `stories.db`. A story that comes twice is written once.

    Scrapy 2.13 passes the spider, which isn't needed here. Later versions don't.
    """

    def open_spider(self, *_spider: object) -> None:
        self.waiting: list[tuple[Any, Hold]] = []
        self.database = sqlite3.connect("stories.db")
        self.database.execute("CREATE TABLE IF NOT EXISTS stories (url PRIMARY KEY, title)")

    def process_item(self, item: Any, *_spider: object) -> Any:
        """Keep a story for the next transaction, and its page waiting."""
        self.waiting.append((item, hold(item)))
        if len(self.waiting) >= ROWS:
            self.write()
        return item

    def write(self) -> None:
        """Commit the stories that wait, so that their pages are remembered.

        After `kill -9`, the next run crawls the pages again that still waited.
        """
        with self.database:
            rows = [(story["url"], story["title"]) for story, _ in self.waiting]
            self.database.executemany("INSERT OR REPLACE INTO stories VALUES (?, ?)", rows)
        for _, held in self.waiting:
            held.release()
        self.waiting.clear()

    def close_spider(self, *_spider: object) -> None:
        self.write()
        self.database.close()
