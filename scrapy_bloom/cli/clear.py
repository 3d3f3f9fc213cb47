"""``scrapy bloom clear``: forget all URLs of a filter."""

from scrapy_bloom.bloom.model.units import plural
from scrapy_bloom.bloom.protocol.info import describe
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    add_change_options,
    report_forgotten,
)

HELP = "forget all URLs of a filter"
add_options = add_change_options


def run(session: CommandSession) -> ExitCode:
    """Clear a filter, if the user agrees.

    Raises:
        NothingThereError: there is no filter.
        ConfigurationError: there is no terminal to ask at.
        StorageError: the server did not answer; some blocks may be empty already.
    """
    name = session.window
    with session.connect() as server:
        before, bloom = describe(server.key(name), server.read(name)), server.filter(name)
        text = f"its {plural(before.count, 'URL')}"
        if before.claims:
            text += f" and {plural(before.claims, 'claim')}"
        if not session.confirm(f"Clear {bloom.key!r} on {server.address}, which forgets {text}"):
            return ExitCode.NO
        bloom.clear()
        report_forgotten(session, server, bloom.info(), before.count)
    return ExitCode.FINE
