"""Ways in which a crawl of ``odd_site`` ends early."""

from collections.abc import Callable
from signal import SIGTERM
from typing import Any

from support.odd_site import Lab

#: Pages that a crawl gets before it is interrupted.
MIDWAY = 12
#: Ends a crawl of a spider, with settings.
End = Callable[..., None]


def kill(lab: Lab, spider: str, **settings: Any) -> None:
    lab.kill_midway(MIDWAY, spider, **settings)


def stop(lab: Lab, spider: str, **settings: Any) -> None:
    lab.stop_midway(MIDWAY, spider, **settings)


def terminate(lab: Lab, spider: str, **settings: Any) -> None:
    lab.stop_midway(MIDWAY, spider, SIGTERM, **settings)


def stop_at_once(lab: Lab, spider: str, **settings: Any) -> None:
    with lab.midway(MIDWAY, spider, **settings) as crawl:
        crawl.ask_to_stop()
        crawl.ask_to_stop(at_once=True)
        crawl.wait()


def stop_by(setting: str) -> End:
    """Return what lets a crawl end by itself."""

    def stop(lab: Lab, spider: str, **settings: Any) -> None:
        lab.crawl(spider, **settings, **{setting: MIDWAY})

    return stop


ENDS: dict[str, End] = {
    "SIGKILL": kill,
    "SIGINT": stop,
    "SIGINT twice": stop_at_once,
    "SIGTERM": terminate,
    "page count": stop_by("CLOSESPIDER_PAGECOUNT"),
}
