"""A crawl whose client may have few connections."""

from support.odd_site import TREE, LabOf, tree

PAGES = 100


def test_what_goes_on_at_a_time_waits_for_a_connection(lab_of: LabOf) -> None:
    """Lookups and writes would take the lack of one for an outage, again and again."""
    lab = lab_of(tree(PAGES))
    done = lab.crawl(TREE, BLOOM_REDIS_PARAMS='{"max_connections": 1}')
    assert "bloom/outages" not in done.stats
    assert done.recorded == lab.site.pages.keys() - {"/"}
    assert not done.claims
