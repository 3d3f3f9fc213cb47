"""What a crawl's queue loses when the crawl is killed, and when it is stopped."""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object


@dataclass(frozen=True, slots=True)
class Queue:
    """Where requests wait.

    Args:
        name: identifies a queue that may hold requests of other workers; "" for any other queue.
        survives_kill: whether it is complete after ``kill -9``.
        survives_stop: whether it is complete after a clean stop.
        is_shared: whether several workers use it.
        kind: its description, for messages.
    """

    name: str
    survives_kill: bool
    survives_stop: bool
    is_shared: bool
    kind: str

    @classmethod
    def of(cls, settings: BaseSettings) -> "Queue":
        """Return the queue that settings describe."""
        scheduler = _scheduler(settings)
        if scheduler.startswith("scrapy_redis."):
            name = f"redis {settings.get('SCHEDULER_QUEUE_KEY', '%(spider)s:requests')}"
            if settings.getbool("SCHEDULER_PERSIST"):
                return cls(name, True, True, True, "scrapy-redis's queue")
            # The first worker that stops deletes it.
            kind = "scrapy-redis's queue without SCHEDULER_PERSIST"
            return cls(name, True, False, True, kind)
        jobdir = settings.get("JOBDIR")
        if jobdir and scheduler.startswith("scrapy."):
            # Scrapy writes its index at a clean stop only.
            path = str(Path(str(jobdir)).resolve()).encode("utf-8", "surrogateescape")
            name = f"dir {blake2b(path, digest_size=16).hexdigest()}"
            return cls(name, False, True, False, "the queue in JOBDIR")
        return cls("", False, False, False, "the queue in this process's memory")


def _scheduler(settings: BaseSettings) -> str:
    """Return the module of the scheduler, or of the scheduler it derives from."""
    loaded: Any = load_object(settings["SCHEDULER"])
    modules = [base.__module__ for base in getattr(loaded, "__mro__", (loaded,))]
    for module in modules:
        if module.startswith(("scrapy_redis.", "scrapy.")):
            return str(module)
    return ""
