"""The rule: what a URL that isn't new does to a page that led to it."""

import pytest

from scrapy_bloom.crawl.rule import Effect, Known, effect

#: A request that can't be stored is a lambda's, for example. Where a page's own request has led is
#: never stored.
TABLE = """
the URL     a link, which can be stored   a link, which can't be   where it was redirected
RECORDED    SAFE                          SAFE                     SAFE
START       SAFE                          SAFE                     LEAVE
STORED      SAFE                          SAFE                     SAFE
HERE        STORE                         WAIT                     WAIT
ELSEWHERE   LEAVE                         LEAVE                    LEAVE
FAILED      STORE                         SAFE                     FAIL
ASTRAY      STORE                         LEAVE                    FAIL
DROPPED     SAFE                          SAFE                     DROP
"""
ROWS = {known: effects for known, *effects in map(str.split, TABLE.strip().splitlines()[1:])}
LINK, UNSTORED, REDIRECT = range(3)


@pytest.mark.parametrize(
    ("column", "is_redirect", "has_request"),
    [
        (LINK, False, True),
        (UNSTORED, False, False),
        (REDIRECT, True, True),
        (REDIRECT, True, False),
    ],
)
@pytest.mark.parametrize("known", Known, ids=lambda known: known.name)
def test_what_a_url_does_to_a_page_that_led_to_it(
    known: Known, column: int, is_redirect: bool, has_request: bool
) -> None:
    found = effect(known, is_redirect=is_redirect, has_request=has_request)
    assert found is Effect[ROWS[known.name][column]]


def test_the_table_has_all_that_can_be_known_and_all_effects() -> None:
    assert [*ROWS] == [known.name for known in Known]
    assert {one for row in ROWS.values() for one in row} == {one.name for one in Effect}
