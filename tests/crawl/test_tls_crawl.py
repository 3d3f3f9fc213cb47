"""Crawls over TLS."""

from pathlib import Path

from example_site.serve import SiteServer
from support.certificates import TLSServer
from support.crawling import crawl, options, run_scrapy


def test_a_crawl_with_a_client_certificate(
    tls_server: TLSServer, web: SiteServer, tmp_path: Path
) -> None:
    own = tls_server.client
    url = tls_server.url(ssl_certfile=own.certificate, ssl_keyfile=own.key)
    with tls_server.server.client() as client, tls_server.requiring():
        client.flushall()
        stats = crawl("links", web, tmp_path, BLOOM_REDIS_URL=url, BLOOM_TIMEOUT="10")
        assert stats["bloom/new"] > 0
        assert "bloom/outages" not in stats
        assert client.keys("*")


def test_a_crawl_that_does_not_trust_the_server(tls_server: TLSServer, web: SiteServer) -> None:
    url = tls_server.url(trusting=False)
    done = run_scrapy("crawl", "links", *options(web, {"BLOOM_REDIS_URL": url}))
    assert "no known authority has signed (certificate verify failed" in done.stderr
    assert "set ssl_ca_certs to" in done.stderr


def test_a_crawl_with_a_wrong_path(web: SiteServer) -> None:
    url = "rediss://127.0.0.1?ssl_ca_certs=/none.pem"
    done = run_scrapy("crawl", "links", *options(web, {"BLOOM_REDIS_URL": url}))
    assert "BLOOM_REDIS_URL sets ssl_ca_certs '/none.pem', which does not exist" in done.stderr
