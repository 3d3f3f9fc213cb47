"""``scrapy bloom rotate``: a new generation now, in place of the oldest."""

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.protocol.info import describe
from scrapy_bloom.bloom.protocol.ring_store import Snapshot
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    add_change_options,
    report_forgotten,
)

HELP = "open a new generation now; the oldest may be forgotten"
add_options = add_change_options


def run(session: CommandSession) -> ExitCode:
    """Rotate a filter, if the user agrees.

    Raises:
        NothingThereError: there is no filter.
        ConfigurationError: it has no window, or there is no terminal to ask at.
        StorageError: the server did not answer; some blocks may have rotated already.
    """
    name = session.window
    with session.connect() as server:
        snapshot, bloom = server.read(name), server.filter(name)
        if describe(bloom.key, snapshot).window is None:
            raise ConfigurationError(
                f"the filter {bloom.key!r} is stored without a window, so it has nothing to "
                "rotate: set BLOOM_RECRAWL_AFTER and run scrapy bloom settings --apply, or clear "
                "the filter"
            )
        count, forgotten = describe(bloom.key, snapshot).count, _forgotten_by_rotation(snapshot)
        text = f"{forgotten:,} of its {count:,} URLs"
        if not session.confirm(f"Rotate {bloom.key!r} on {server.address}, which forgets {text}"):
            return ExitCode.NO
        bloom.rotate()
        report_forgotten(session, server, bloom.info(), forgotten)
    return ExitCode.FINE


def _forgotten_by_rotation(snapshot: Snapshot) -> int:
    """Return how many URLs a rotation forgets."""
    forgotten = 0
    for block, ring in snapshot.rings.items():
        counts = snapshot.counts[block]
        forgotten += ring.count(counts) - ring.rotate(snapshot.now, counts).count(counts)
    return forgotten
