"""The last log lines of a crawl."""

from dataclasses import replace

from support.infos import GENERATION, INFO

from scrapy_bloom.crawl.report import Tally, nothing_new, summary


def test_a_summary_counts_the_run_and_what_is_left() -> None:
    assert summary(Tally(12, 3_400, 1), INFO) == (
        "12 new, 3,400 seen, 1 failed in this process; 335 URLs are remembered; the next rotation "
        "is on 2027-02-14 08:00 UTC"
    )
    versions = summary(Tally(12, 3_400, 1), INFO, has_versions=True)
    assert "; 335 URLs and versions of URLs are remembered; " in versions
    with_listings = summary(Tally(12, 3_400, 1, without_item=4), INFO)
    assert with_listings.startswith("12 new (4 without an item), 3,400 seen, 1 failed in this")
    with_pending = summary(Tally(1, 0, 0, taken_over=23), INFO)
    assert with_pending.startswith("1 new, 23 that were pending, 0 seen")
    alone = summary(Tally(12, 3_400, 1, unknown=1, offline=3), None)
    assert alone == (
        "12 new, 4 crawled without the server's answer, 3,400 seen, 1 failed in this process; how "
        "many URLs are remembered is not known"
    )
    pending = replace(INFO, claims=3, generations=(replace(GENERATION, closes=0),))
    assert summary(Tally(0, 0, 0), pending).endswith(
        "335 URLs are remembered, 3 pending: not crawled yet, or failed (scrapy bloom pending)"
    )


def test_where_nothing_was_new_the_reason_and_the_remedy_are_said() -> None:
    text = nothing_new(Tally(0, 5, 0), INFO)
    assert text is not None
    assert "each link that was found (5) is remembered, the oldest since 2027-01-15" in text
    assert "crawled again from 2027-03-16" in text
    assert 'BLOOM_REMEMBER = "items"' in text
    assert 'meta={"bloom_recrawl_after": "run"}' in text
    named = str(nothing_new(Tally(0, 5, 0), INFO, names_pages=True))
    assert named.startswith("nothing was new: each link that was found (5) is remembered")
    assert "crawled again from 2027-03-16" in named
    assert "name them" not in named
    for_ever = replace(INFO, generations=(replace(GENERATION, forgotten=0),))
    assert "crawled again" not in str(nothing_new(Tally(0, 5, 0), for_ever))


def test_where_something_was_new_or_nothing_was_found_there_is_no_reason() -> None:
    assert nothing_new(Tally(1, 5, 0), INFO) is None
    assert nothing_new(Tally(0, 0, 0), INFO) is None
    assert nothing_new(Tally(0, 5, 0, taken_over=1), INFO) is None
    assert nothing_new(Tally(0, 5, 0, offline=1), INFO) is None


def test_links_may_be_claimed_by_another_worker() -> None:
    text = nothing_new(Tally(0, 5, 0), replace(INFO, claims=1))
    assert "UTC on; or it is pending (1 page): another worker is crawling it, or it" in str(text)
