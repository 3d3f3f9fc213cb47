"""A dupefilter serves its stats while it is used (``BLOOM_METRICS_PORT``)."""

import re
import socket

import pytest
from scrapy import Request
from support.dupefilters import URL, Make
from support.prometheus import fetch, parse

MAIN = (("spider", "shop"),)
PAGE = re.compile(r"Bloom filter: metrics at (http://127\.0\.0\.1:\S+)")


def test_stats_are_served_while_the_filter_is_used(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    dupefilter = make(BLOOM_METRICS_PORT=0)
    (address,) = PAGE.findall(caplog.text)
    found = []
    for number in (1, 2):
        for _ in range(2):
            dupefilter.request_seen(Request(f"{URL}&d={number}"))
        found.append(parse(fetch(address)))
    for name in ("new", "seen"):
        assert [one[f"scrapy_bloom_{name}_total", MAIN] for one in found] == [1, 2]
    assert found[0]["scrapy_bloom_outages_total", MAIN] == 0
    assert found[0]["scrapy_bloom_generations", MAIN] == 1
    first, second = (one["scrapy_bloom_round_trips", MAIN] for one in found)
    assert 0 < first < second


def test_the_port_is_open_for_one_crawl_and_then_for_the_next(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it is in use, there is one warning, and the crawl goes on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not make(BLOOM_METRICS_PORT=port).request_seen(Request(URL))
    (warning,) = [text for text in caplog.messages if "BLOOM_METRICS_PORT" in text]
    assert f"BLOOM_METRICS_PORT = 127.0.0.1:{port} cannot be used" in warning
    assert "Address already in use" in warning
    caplog.clear()
    for _ in range(2):
        dupefilter = make(BLOOM_METRICS_PORT=port)
        assert is_open(port)
        dupefilter.close("finished")
        assert not is_open(port)
    assert "cannot be used" not in caplog.text


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
