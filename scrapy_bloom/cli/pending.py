"""``scrapy bloom pending``: the claims of a filter, one a line; ``--release`` ends them."""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.units import plural
from scrapy_bloom.bloom.protocol import claim_protocol, worker_protocol
from scrapy_bloom.cli.session import (
    CommandSession,
    ExitCode,
    Server,
    add_change_options,
    iso,
    print_json_list,
    with_dates,
)
from scrapy_bloom.cli.stored_claims import printable, scan_block, stored_claims, url_of
from scrapy_bloom.crawl.claims import workers

#: A claim in the form that JSON has.
Claim = dict[str, Any]

HELP = "list all URLs that are claimed, by owner, and end claims (failed says why pages failed)"
#: What happens to the pages of claims that are released.
CONSEQUENCE = "their pages are crawled only if a crawl finds the URLs again"
HEADING = f"{'attempts':8}  {'since, or due if it failed':26}  {'owner':30}  URL"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_change_options(parser)
    parser.add_argument(
        "--owner", metavar="OWNER", help="only claims of this owner (its id, HOST:PID or spider)"
    )
    parser.add_argument(
        "--release",
        action="store_true",
        help=f"end the claims of --owner, and delete their requests, so that {CONSEQUENCE}. Not "
        "needed for workers that are dead or stopped, whose claims the next crawl takes over",
    )


def run(session: CommandSession) -> ExitCode:
    """List claims, or end them if the user agrees.

    Raises:
        NothingThereError: there is no filter.
        ConfigurationError: the options are wrong.
        StorageError: the server did not answer; some claims may have been released.
    """
    opts = session.opts
    if opts.release and not opts.owner:
        raise ConfigurationError("say whose claims to release: --release with --owner")
    with session.connect() as server:
        bloom, snapshot = server.filter(session.window), server.read(session.window)
        head = {"address": server.address, "name": session.window, "key": bloom.key}
        claims = (
            claim
            for claim in _claims(session, server, bloom, snapshot.header.blocks)
            if opts.owner is None or _is_of(claim, opts.owner)
        )
        if opts.release:
            return _release(session, bloom, claims, head)
        _show(session, claims, head)
    return ExitCode.FINE


def _claims(
    session: CommandSession, server: Server, bloom: BloomFilter, blocks: int
) -> Iterator[Claim]:
    """Yield all claims of a filter. A claim may come twice."""
    found = workers.parse_all(bloom.run(worker_protocol.read_workers).entries)
    spiders = {workers.tag(name): name for name in session.spiders}
    cooldown = session.settings.retry_after
    for block in range(blocks):
        for page in scan_block(bloom, block):
            stored = stored_claims(server, bloom, block, [claim.field for claim in page.claims])
            for claim, url in zip(page.claims, map(url_of, stored), strict=True):
                tag, worker = claim.owner[1:9], found.get(claim.owner)
                document = {
                    "url": url,
                    "attempts": claim.attempt,
                    "since": 0 if claim.failed else claim.time,
                    "due": claim.due(page.now, cooldown) if claim.failed else 0,
                    "owner": claim.owner,
                    "worker": f"{worker.process.host}:{worker.process.pid}" if worker else "",
                    "spider": spiders.get(tag, tag),
                    "block": block,
                    "field": claim.field,
                }
                yield with_dates(document)


def _is_of(claim: Claim, owner: str) -> bool:
    """Whether ``--owner`` is the owner's id, its host and process, or its spider."""
    names = (claim["owner"], claim["worker"], claim["spider"])
    return owner in names or workers.is_of(claim["owner"], owner)


def _show(session: CommandSession, claims: Iterator[Claim], head: Mapping[str, str]) -> None:
    if session.opts.json:
        print_json_list(head, "claims", claims)
        return
    total = 0
    print(HEADING)
    for claim in claims:
        total += 1
        when = f"due {iso(claim['due'])}" if claim["due"] else iso(claim["since"]) or ""
        owner = printable(f"{claim['worker'] or claim['owner']} {claim['spider']}")
        url = "(its request is not kept)" if claim["url"] is None else printable(claim["url"])
        print(f"{claim['attempts']:8}  {when:26}  {owner:30}  {url}")
    print(f"{head['key']} on {head['address']}: {plural(total, 'claim')}")


def _release(
    session: CommandSession, bloom: BloomFilter, claims: Iterator[Claim], head: Mapping[str, str]
) -> ExitCode:
    fields = defaultdict(set)
    for claim in claims:
        fields[claim["owner"], claim["block"]].add(claim["field"])
    count, where = sum(map(len, fields.values())), f"{bloom.key} on {head['address']}"
    if count and not session.confirm(f"Release {plural(count, 'claim')} of {where}; {CONSEQUENCE}"):
        return ExitCode.NO
    released = 0
    for (owner, block), part in fields.items():
        # A claim that has another owner by now is left alone.
        release = partial(claim_protocol.release_fields, fields={block: [*part]}, owner=owner)
        released += bloom.run(release)
    text = f"{where}: {plural(released, 'claim')} released; {CONSEQUENCE}"
    session.report({**head, "released": released}, text)
    return ExitCode.FINE
