"""``scrapy bloom delete``: a filter with all its keys."""

from scrapy_bloom.bloom.errors import StorageError
from scrapy_bloom.bloom.protocol.deletion import stored_blocks
from scrapy_bloom.bloom.protocol.info import FilterInfo, describe
from scrapy_bloom.cli.render import size
from scrapy_bloom.cli.session import CommandSession, Server, print_json


def run(session: CommandSession) -> bool:
    """Delete a filter; return whether it was done, False if the user said no.

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
            return False
        bloom.delete()
        if session.tables is None:
            head = {"address": server.address, "name": name, "key": bloom.key}
            fields = {"urls_forgotten": "count", "memory": "memory", "claims": "claims"}
            print_json(head | {text: getattr(info, field, None) for text, field in fields.items()})
        else:
            session.tables.show(f"{bloom.key} on {server.address} deleted, {contents}")
    return True


def _look(server: Server, name: str) -> tuple[FilterInfo | None, str]:
    """Return what a filter is, None if that is not known; and a text that says it.

    Raises:
        NothingThereError: there is no filter, nor anything that is left of one.
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
    return info, f"with {info.count:,} URLs ({size(info.memory)}) and {info.claims:,} claims"
