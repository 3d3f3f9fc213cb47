"""Which rights a user of the server needs for a filter, and which of them it lacks. No I/O.

The commands are read from the texts of the scripts, so that there is no second list of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from scrapy_bloom.bloom.errors import RightsError, shown
from scrapy_bloom.bloom.model.keys import Keys, escape
from scrapy_bloom.bloom.protocol.scripts import WRITES, Call, Commands, Reply, commands_in, load

#: Uses of a filter.
CRAWL, READ, DELETE, EXPORT, IMPORT, SETS = "crawl", "read", "delete", "export", "import", "sets"
LIST, LEDGER = "list", "ledger"
#: Scripts that crawls do not run, by what they are for.
_SCRIPTS = {
    LEDGER: (
        *("ledger_add", "ledger_read", "ledger_pack"),
        *("ledger_due", "ledger_drop", "ledger_missing"),
        *("ledger_list", "ledger_chunk", "ledger_rules"),
    ),
    DELETE: ("walk",),
    EXPORT: ("read_range",),
    IMPORT: ("allocate", "write_range"),
    SETS: ("allocate", "discard", "merge", "read_range", "write_range"),
}
#: What each use is, for people.
USES = {
    CRAWL: "crawls, and most of the library; rotate, clear, settings, pending --release, recrawl, "
    "migrate",
    LEDGER: "crawls with a ledger, together with crawl",
    READ: "info, check, failed, gone, and the list of pending",
    LIST: "list; it sees the names of all keys",
    DELETE: "delete",
    EXPORT: "export",
    IMPORT: "import",
    SETS: "set operations of the library, and discard",
}
_READING = (READ, LIST)
#: What finds filters by the names of their keys, without a script.
SCAN = "SCAN"
#: Scripts that read; some write, but with other arguments.
_READERS = (
    *("contains", "exists", "header", "heartbeat", "read", "scan"),
    *("ledger_chunk", "ledger_list", "ledger_read"),
)
#: What each call of a script may be: by its name, or its text.
CALLS = ("EVALSHA", "EVAL")
#: What clients send themselves. The first names the server's process and its eviction policy; the
#: second the type of a key that holds something else; the last is sent for any database but 0.
CLIENT = ("INFO", "TYPE", "SELECT")
#: The same for clusters: for redis-py's clients, and behind a redirection.
CLUSTER = ("CLUSTER SLOTS", "COMMAND", "ASKING")
#: What waiting for replicas needs.
WAIT = "WAIT"
#: What redis-py sends with each connection and does not need. Redis 7.2 introduced it.
SETINFO = "CLIENT SETINFO"
#: Names of keys that an error shows.
MAX_SHOWN = 5


@cache
def commands_for(*uses: str) -> Commands:
    """Return the commands of the scripts that some uses of a filter run.

    Args:
        uses: of ``USES``.
    """
    needed, optional = set[str](), set[str]()
    for use in uses:
        for name in _scripts_for(use):
            found = commands_in(load(name).text)
            needed |= {*found.needed} - (WRITES if use in _READING else set())
            optional |= {*found.optional}
    if LIST in uses:
        needed.add(SCAN)
    return Commands(tuple(sorted(needed)), tuple(sorted(optional - needed)))


def _scripts_for(use: str) -> Iterable[str]:
    if use in _READING:
        return _READERS
    if use != CRAWL:
        return ("drop", *_SCRIPTS[use], *_READERS)
    files = resources.files(__package__).joinpath("lua").iterdir()
    names = {file.name.removesuffix(".lua") for file in files}
    others = {name for group in _SCRIPTS.values() for name in group}
    return (name for name in names - others if not name.startswith("prelude_"))


@dataclass(frozen=True, slots=True)
class Rules:
    """What a user may do, as rules of the server's access control list.

    Args:
        keys: patterns of keys, as ``~{shop:bloom:*}:*``.
        commands: as ``+hset``.
    """

    keys: tuple[str, ...]
    commands: tuple[str, ...]

    @classmethod
    def of(
        cls,
        prefixes: Sequence[str],
        uses: Sequence[str] = (CRAWL,),
        *,
        more: Sequence[str] = (),
        read_keys: Sequence[str] = (),
    ) -> "Rules":
        """Return the rules for filters.

        Args:
            prefixes: their keys.
            uses: of ``USES``.
            more: further commands.
            read_keys: further keys, which are only read.
        """
        found = commands_for(*uses)
        names = {*CALLS, *CLIENT, *found.needed, *found.optional, *more}
        return cls(
            tuple(
                [f"~{_storable(Keys(prefix).pattern)}" for prefix in prefixes]
                + [f"%R~{_storable(escape(key))}" for key in read_keys]
            ),
            tuple(f"+{name.lower().replace(' ', '|')}" for name in sorted(names)),
        )

    def setuser(self, name: str, password: str) -> str:
        """Return the command that makes a user of exactly these rights."""
        return f"ACL SETUSER {name} reset on >{password} {self}"

    def line(self, name: str, password: str) -> str:
        """Return the user's line of a file of users, or of the server's configuration."""
        return f"user {name} on >{password} {self}"

    def __str__(self) -> str:
        return " ".join(("resetchannels", *self.keys, *self.commands))


def _storable(pattern: str) -> str:
    """Return a pattern as rules can hold it: without spaces and the like, and without quotes."""
    return "".join("?" if c in "\"'" or ord(c) <= 32 or ord(c) == 127 else c for c in pattern)


# -- tests --


def test_open(keys: Keys, blocks: int) -> list[Call]:
    """Return calls that test whether a crawl lacks rights: for each block, on the block's node.

    Args:
        keys: the filter's keys.
        blocks: how many blocks to test.
    """
    commands = (*CALLS, *commands_for(CRAWL).needed)
    return [_test(keys.of_block(block), commands) for block in range(blocks)]


def test_ledger(keys: Keys, blocks: int) -> list[Call]:
    """Return calls that test whether a crawl with a ledger lacks rights, as ``test_open`` does."""
    commands = (*CALLS, *commands_for(LEDGER).needed)
    return [_test(keys.of_ledger(block), commands) for block in range(blocks)]


def test_again(calls: Iterable[Call]) -> list[Call]:
    """Return calls that test which rights are missing for calls that were refused."""
    return [
        _test(call.keys, (*CALLS, *commands_in(call.script.text).needed))
        if call.uses_keys
        else call  # it is a test
        for call in calls
    ]


def _test(keys: Sequence[str], commands: Sequence[str]) -> Call:
    return Call(load("rights"), (keys[0],), (len(keys), *keys, *commands), uses_keys=False)


def missing(replies: Iterable[Reply]) -> RightsError | None:
    """Return an error that names what the replies to tests do; None if nothing is missing."""
    found = dict[str, str]()
    for reply in replies:
        found |= reply.fields
    commands = [name for name, kind in found.items() if kind == "command"]
    keys = [name for name, kind in found.items() if kind != "command"]
    parts = [f"run {', '.join(commands)}"] if commands else []
    if keys:
        more = f" and {len(keys) - MAX_SHOWN} more" if len(keys) > MAX_SHOWN else ""
        names = ", ".join(shown(key, 200) for key in keys[:MAX_SHOWN])
        parts.append(f"read and write the keys {names}{more}")
    if not parts:
        return None
    return RightsError(f"`user` may not {', nor '.join(parts)} on `server`: grant `rights`")
