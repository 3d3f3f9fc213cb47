"""Notes in block 0 which spiders, windows and start requests a filter has had. No I/O."""

from collections.abc import Mapping
from contextlib import suppress
from itertools import chain

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.schedule import Schedule
from scrapy_bloom.bloom.protocol.rings import DEFAULT, Operation, Rings
from scrapy_bloom.bloom.protocol.scripts import call


def note_crawl(
    rings: Rings, spider: str, project: str = ""
) -> Operation[tuple[dict[str, Schedule], str]]:
    """Note a crawl's spider, with its project, and its windows.

    Returns:
        The schedules of windows that were other ones in the last crawl, and the project that the
        spider of this name belonged to, if that was another one.
    """
    yield from rings.open()
    (reply,) = yield [rings.read_block(0)]
    own = {f"w:{name}": schedule.text for name, schedule in rings.windows.items()}
    own[f"s:{spider}"] = project
    news = {name: text for name, text in own.items() if reply.fields.get(name) != text}
    if news:
        note = call("note", (rings.keys.ring(0),), *chain(*news.items()))
        (there,) = yield [note]
        if "spec" not in there.fields:  # it was evicted meanwhile
            yield from rings.update({(DEFAULT, 0): there})
            yield [note]
    before = schedules_in(reply.fields)
    changed = (name for name in rings.windows if f"w:{name}" in news and name in before)
    other = reply.fields.get(f"s:{spider}", "") if f"s:{spider}" in news else ""
    return {name: before[name] for name in changed}, other


def note_starts(rings: Rings, spider: str, mark: str) -> Operation[bool]:
    """Note a hash of a run's start requests; return whether a run before had the same."""
    (reply,) = yield [rings.read_block(0)]
    name = f"t:{spider}"
    if reply.fields.get(name) == mark:
        return True
    yield [call("note", (rings.keys.ring(0),), name, mark)]
    return False


def schedules_in(fields: Mapping[str, str]) -> dict[str, Schedule]:
    """Return the schedules of windows that crawls have noted."""
    found = {}
    for name, text in fields.items():
        if name.startswith("w:"):
            with suppress(ConfigurationError):
                found[name[2:]] = Schedule.parse(text)
    return found


def noted(rings: Rings) -> Operation[tuple[list[str], dict[str, Schedule]]]:
    """Return the spiders and windows that crawls have noted."""
    (reply,) = yield [rings.read_block(0)]
    spiders = [name[2:] for name in reply.fields if name.startswith("s:")]
    return sorted(spiders), schedules_in(reply.fields)
