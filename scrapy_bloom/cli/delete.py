"""``scrapy bloom delete``: a filter with all its keys."""

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.model.units import plural
from scrapy_bloom.bloom.protocol.deletion import stored_blocks
from scrapy_bloom.bloom.protocol.info import FilterInfo, describe
from scrapy_bloom.cli.render import size
from scrapy_bloom.cli.session import CommandSession, ExitCode, Server, add_change_options

HELP = "delete a filter with all its keys"
add_options = add_change_options


def run(session: CommandSession) -> ExitCode:
    """Delete a filter, if the user agrees.

    Raises:
        NothingThereError: there is no filter.
        ConfigurationError: there is no terminal to ask at.
        StorageError: the server did not answer; some blocks may be gone already.
    """
    name = session.window
    with session.connect() as server:
        bloom = server.filter(name)
        info, contents = _look(server, name)
        if not session.confirm(f"Delete {bloom.key!r} on {server.address}, {contents}"):
            return ExitCode.NO
        bloom.delete()
        document = {
            "address": server.address,
            "name": name,
            "key": bloom.key,
            "urls_forgotten": info and info.count,
            "memory": info and info.memory,
            "claims": info and info.claims,
        }
        session.report(document, f"{bloom.key} on {server.address} deleted, {contents}")
    return ExitCode.FINE


def _look(server: Server, name: str) -> tuple[FilterInfo | None, str]:
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
