"""``scrapy bloom acl``: the rights that a filter's user needs. Needs no server."""

import re

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.protocol.rights import CLUSTER, CRAWL, LEDGER, SETINFO, USES, WAIT, Rules
from scrapy_bloom.cli.migrate import set_key
from scrapy_bloom.cli.session import KEY, CommandSession, option, subcommand

#: Stands for the password, which is in no file of the project's.
PASSWORD = "PASSWORD"  # noqa: S105 - it is none
#: What a migration reads the SET with.
READ_SET = ("SCARD", "SSCAN")


@subcommand(
    "print the rights that a filter's user needs on the server; needs no server",
    KEY,
    option("--user", metavar="NAME", default="scrapy-bloom", help="the user's name"),
    option(
        "--for",
        dest="uses",
        metavar="USE,...",
        default=CRAWL,
        help=f"what the user does, by default {CRAWL}; there are "
        + "; ".join(f"{use} ({text})" for use, text in USES.items()),
    ),
    option("--cluster", action="store_true", help="the server is a cluster"),
    option(
        "--from-set",
        nargs="?",
        const="",
        metavar="KEY",
        help="migrate from the SET of scrapy-redis, too (by default the spider's)",
    ),
    option(
        "--setinfo",
        action="store_true",
        help="let redis-py name itself, which keeps ACL LOG clean (Redis 7.2, Valkey)",
    ),
)
def acl(session: CommandSession) -> None:
    """Print the rights, as a command and as a line of a file.

    Raises:
        ConfigurationError: an option is wrong.
    """
    opts = session.opts
    if not re.fullmatch(r"[^\s\x00\"']+", opts.user):
        raise ConfigurationError(f"--user {opts.user!r:.60} has spaces or quotes: choose another")
    uses = tuple(part.strip() for part in opts.uses.split(","))
    if unknown := [use for use in uses if use not in USES]:
        raise ConfigurationError(f"--for {unknown[0]!r:.60} is none of {', '.join(USES)}")
    more: tuple[str, ...] = CLUSTER if opts.cluster else ()
    sets: tuple[str, ...] = ()
    if opts.from_set is not None:
        more, sets = (*more, *READ_SET), (opts.from_set or set_key(session),)
    if session.settings.ledger and CRAWL in uses and LEDGER not in uses:
        uses = (*uses, LEDGER)
    if session.settings.wait_replicas:
        more = (*more, WAIT)
    if opts.setinfo:
        more = (*more, SETINFO)
    rules = Rules.of([session.settings.key], uses, more=more, read_keys=sets)
    command, line = rules.setuser(opts.user, PASSWORD), rules.line(opts.user, PASSWORD)
    document = {"user": opts.user, "keys": rules.keys, "commands": rules.commands}
    where = " (on each node)" if opts.cluster else ""
    text = f"In redis-cli{where}:\n\n{command}\n\nOr in users.acl, or redis.conf{where}:\n\n{line}"
    session.report({**document, "setuser": command, "line": line}, text)
