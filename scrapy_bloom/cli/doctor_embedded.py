"""What ``scrapy bloom doctor`` finds about the place where ``embedded:`` keeps its data."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scrapy_bloom.bloom.errors import BloomError
from scrapy_bloom.cli.doctor_checks import Check, of_error
from scrapy_bloom.cli.render import size
from scrapy_bloom.crawl.advice import Finding
from scrapy_bloom.crawl.filters import data_directory

#: Files that container engines make.
CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
#: Directories that a restart of the machine empties.
TEMPORARY = ("/tmp", "/dev/shm", "/run")  # noqa: S108 - it is about these
#: Sizes of the filters that its files take, while the server writes them again.
ON_DISK = 2


@dataclass(frozen=True, slots=True)
class Place:
    """A directory for data.

    Args:
        directory: the directory.
        is_there: whether it exists.
        free: bytes that are free on its disk.
        is_temporary: whether a restart of the machine may empty it.
        is_in_container: whether it goes when its container is removed.
    """

    directory: Path
    is_there: bool
    free: int
    is_temporary: bool
    is_in_container: bool


def place_of(url: str | None) -> Place | None:
    """Look at the directory of an address; None if it is no embedded server's."""
    if url is None or not url.startswith("embedded:") or url.startswith("embedded://"):
        return None
    directory = Path(url.removeprefix("embedded:") or data_directory("bloom"))
    directory = directory.expanduser().resolve()
    parents = [directory, *directory.parents]
    existing = next(path for path in parents if path.exists())
    temporary = [Path(path).resolve() for path in (*TEMPORARY, tempfile.gettempdir())]
    # A volume is mounted somewhere below the root.
    is_mounted = any(os.path.ismount(path) for path in parents[:-1])
    return Place(
        directory,
        directory.exists(),
        shutil.disk_usage(existing).free,
        any(path in parents for path in temporary),
        any(map(os.path.exists, CONTAINER_FILES)) and not is_mounted,
    )


def check_place(place: Place, need: int) -> Iterator[Check]:
    """Yield what is wrong with a directory for so many bytes of filters."""
    if place.is_in_container or place.is_temporary:
        when = "the container is removed" if place.is_in_container else "the machine restarts"
        yield Check(
            "place",
            finding=Finding(
                f"embedded: keeps its data in {place.directory}, which is lost when {when}",
                "the filter is lost with all that is pending, and everything is crawled again",
                'Set BLOOM_REDIS_URL = "embedded:/a/lasting/directory"'
                + (" on a volume" if place.is_in_container else ""),
            ),
        )
    if place.free < ON_DISK * need:
        yield Check(
            "disk",
            finding=Finding(
                f"{size(place.free)} are free on the disk of {place.directory}, and the filters "
                f"take up to {size(ON_DISK * need)} there at full capacity",
                "a server with a full disk refuses to record",
                "Free the disk, or use a directory on another one",
            ),
        )
    elif not (place.is_in_container or place.is_temporary):
        yield Check("place", f"{place.directory}, {size(place.free)} free")


def check_binary() -> Check:
    """Return whether there is a server to start."""
    try:
        from scrapy_bloom.bloom.client.embedded import binary  # noqa: PLC0415 - needs POSIX

        binary()
    except ImportError:
        text = '`url` = "embedded:" works on Linux and macOS only: use redis://host:port'
        return of_error("server", BloomError(text))
    except BloomError as error:
        return of_error("server", error)
    return Check("server", "embedded: is not there yet, the first crawl starts it")
