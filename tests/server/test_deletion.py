"""What a filter takes on the server, and how it goes without a trace."""

from typing import Any

import pytest
from redis import Redis
from support.filters import URLS, add_to, at_round, small, with_windows

from scrapy_bloom.bloom.protocol import whole
from scrapy_bloom.bloom.protocol.claims import Claims, NewClaim
from scrapy_bloom.bloom.protocol.notes import note_crawl
from scrapy_bloom.bloom.protocol.workers import Workers

pytestmark = pytest.mark.each_server(others="slow")


def stored(client: Any) -> set[str]:
    return {key.decode() for key in client.scan_iter(count=1_000)}


@pytest.mark.parametrize("key", ["shop", "sh*p", "sh?p", "s\\hop", "shop:1"])
def test_a_deleted_filter_leaves_nothing_and_no_other_key_goes(client: Redis, key: str) -> None:
    for other in {"shop", "shops", "sh*p", "*", "shop:1:1"} - {key}:
        small(client, other, capacity=10).add("a")
    client.set(f"{{{key}:0}}:mine", "of somebody else")
    before = stored(client)
    bloom = with_windows(client, key, default="5 months", week="1 week")
    bloom.extend(URLS)
    add_to(bloom, "week", *URLS)
    bloom.run(note_crawl(bloom.session, "spider"))
    claims = Claims(bloom.session, "spider")
    bloom.run(claims.keep([NewClaim(("default", url.encode()), "n", "{}") for url in URLS], "w"))
    bloom.run(Workers(claims).beat("w", 60))
    bloom.run(Workers(claims).give([("default", URLS[0].encode())], "w", "g1", 1))
    bloom.run(Workers(claims).give([("default", URLS[1].encode())], "w", "g:2", 1))
    bloom.run(note_crawl(bloom.session, "second"))
    second = Claims(bloom.session, "second")
    bloom.run(second.keep([NewClaim(("default", b"a"), "n", "{}")], "w"))
    assert len(stored(client) - before) == 2 + 2 * 2 + 2 + 1 + (2 + 1) + 1
    # By a client that has none of these windows.
    small(client, key).delete()
    assert stored(client) == before
    small(client, key).delete()
    assert stored(client) == before


@pytest.mark.parametrize("is_used", [False, True])
def test_a_deletion_that_was_interrupted_or_whose_filter_is_used_can_be_repeated(
    client: Redis, is_used: bool
) -> None:
    def happen() -> None:
        user.extend(URLS)
        if not is_used:
            raise KeyboardInterrupt

    for round_ in range(1, 4):
        bloom, user = (small(client, blocks=20) for _ in range(2))
        user.extend(URLS)
        try:
            bloom.run(at_round(whole.delete(bloom.session), round_, happen))
        except KeyboardInterrupt:
            assert stored(client)
        user.extend(URLS)
        assert user.contains(URLS) == [True] * 1000
        small(client).delete()
        assert stored(client) == set()
