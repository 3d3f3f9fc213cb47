"""``scrapy bloom clear``, ``rotate`` and ``delete``: what forgets URLs, if the user agrees."""

from collections.abc import Callable

from scrapy_bloom.bloom.errors import ConfigurationError, StorageError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.protocol.deletion import stored_blocks
from scrapy_bloom.bloom.protocol.info import FilterInfo, describe
from scrapy_bloom.bloom.protocol.ring_store import Snapshot
from scrapy_bloom.bloom.validators import plural
from scrapy_bloom.cli.render import size
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    Subcommand,
    add_change_options,
    to_json,
)


def _clear(session: CommandSession) -> ExitCode:
    """Forget all URLs."""
    with session.connect() as server:
        before = describe(server.key(session.window), server.read(session.window))
        text = f"its {plural(before.count, 'URL')}"
        if before.claims:
            text += f" and {plural(before.claims, 'claim')}"
        return _forget(session, server, BloomFilter.clear, before.count, text)


def _rotate(session: CommandSession) -> ExitCode:
    """Open a new generation.

    Raises:
        ConfigurationError: the filter has no window.
    """
    with session.connect() as server:
        key, snapshot = server.key(session.window), server.read(session.window)
        info, forgotten = describe(key, snapshot), _forgotten_by_rotation(snapshot)
        if info.window is None:
            raise ConfigurationError(
                f"the filter {key!r} is stored without a window, so it has nothing to rotate: set "
                "BLOOM_RECRAWL_AFTER and run scrapy bloom settings --apply, or clear the filter"
            )
        text = f"{forgotten:,} of its {info.count:,} URLs"
        return _forget(session, server, BloomFilter.rotate, forgotten, text)


def _forgotten_by_rotation(snapshot: Snapshot) -> int:
    """Return how many URLs a rotation forgets."""
    forgotten = 0
    for block, ring in snapshot.rings.items():
        counts = snapshot.counts[block]
        forgotten += ring.count(counts) - ring.rotate(snapshot.now, counts).count(counts)
    return forgotten


def _forget(
    session: CommandSession,
    server: Server,
    change: Callable[[BloomFilter], object],
    forgotten: int,
    text: str,
) -> ExitCode:
    """Change a filter, if the user agrees; say what it holds then."""
    bloom = server.filter(session.window)
    verb = session.opts.command.capitalize()
    if not session.confirm(f"{verb} {bloom.key!r} on {server.address}, which forgets {text}"):
        return ExitCode.NO
    change(bloom)
    after = bloom.info()
    head = {"address": server.address, "name": session.window, "urls_forgotten": forgotten}
    text = f"{plural(forgotten, 'URL')} forgotten, {after.count:,} remembered"
    session.report(head | to_json(after), f"{after.key} on {server.address}: {text}")
    return ExitCode.FINE


def _delete(session: CommandSession) -> ExitCode:
    """Delete a filter, or what is left of one."""
    with session.connect() as server:
        bloom = server.filter(session.window)
        info, contents = _contents(server, session.window)
        if not session.confirm(f"Delete {bloom.key!r} on {server.address}, {contents}"):
            return ExitCode.NO
        bloom.delete()
        document = {
            "address": server.address,
            "name": session.window,
            "key": bloom.key,
            "urls_forgotten": info and info.count,
            "memory": info and info.memory,
            "claims": info and info.claims,
        }
        session.report(document, f"{bloom.key} on {server.address} deleted, {contents}")
    return ExitCode.FINE


def _contents(server: Server, name: str) -> tuple[FilterInfo | None, str]:
    """Return what a filter holds, as numbers (None if it cannot be read) and as text.

    Raises:
        NothingThereError: there is no filter, and no remains of one.
    """
    if not server.filter(name).run(stored_blocks):
        raise server.absent(name)
    try:
        snapshot = server.look(name)
    except StorageError as error:
        return None, f"which cannot be read ({error})"
    if snapshot is None:
        return None, "where a filter is being written, or what is left of one"
    info = describe(server.key(name), snapshot)
    urls, claims = plural(info.count, "URL"), plural(info.claims, "claim")
    return info, f"with {urls} ({size(info.memory)}) and {claims}"


CLEAR = Subcommand("forget all URLs of a filter", add_change_options, _clear)
ROTATE = Subcommand(
    "open a new generation now; the oldest may be forgotten", add_change_options, _rotate
)
DELETE = Subcommand("delete a filter with all its keys", add_change_options, _delete)
