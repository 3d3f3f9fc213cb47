"""Notes in block 0 what a filter's crawls were: their spiders, windows and runs. No I/O."""

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


def note_run(rings: Rings, name: str, value: str) -> Operation[str]:
    """Note something of a run; return what was noted under that name before."""
    (reply,) = yield [rings.read_block(0)]
    before = reply.fields.get(name, "")
    if before != value:
        yield [call("note", (rings.keys.ring(0),), name, value)]
    return before


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
