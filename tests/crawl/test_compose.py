"""example_project/compose.yaml: what it starts, on local processes; and its Dockerfile."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis
import yaml
from compose_local import COMPOSE, Project, Service, load
from example_site.build import Site
from example_site.serve import read_hits
from support.crawling import LISTING, taken_over
from support.paths import ROOT

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.client.connection import connect

NODES = ("node-1", "node-2", "node-3")
#: In containers, and here.
REDIS_PORT = 6379


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The services, when the crawlers have ended; the servers run."""
    # An hour could end while they run.
    rules = f"BLOOM_RECRAWL_RULES={json.dumps([[LISTING, '5 months']])}"
    services = [
        replace(one, command=[*one.command, "-s", rules]) if one.name == "crawler" else one
        for one in load()
    ]
    with Project(services, tmp_path_factory.mktemp("compose")) as project:
        project.start()
        project.wait("crawler")
        yield project


def test_two_crawlers_fetch_the_site_together(project: Project) -> None:
    web = project.directory / "web.1"
    truth = Site.open(web / "magazine").truth()
    hits = read_hits(web / "access.log")
    assert truth.lasting | truth.hubs <= hits.keys()
    # Each reads it; and `prepare` has looked whether the site is there.
    del hits["/robots.txt"]
    for path in truth.forbidden:  # as in test_crawl.py
        assert hits.pop(path, 0) <= 1
    repeated = hits - Counter(truth.lasting | truth.hubs) - Counter({"/": 2})
    if "did not answer" not in project.log("crawler"):
        assert repeated.total() <= taken_over(project.log("crawler"))
    # On a busy machine, one may fetch all before the other has started.
    assert project.log("crawler").count("Spider closed (finished)") == 2


def test_the_filter_is_on_the_cluster_and_the_queue_on_its_own_server(project: Project) -> None:
    nodes = [project.address(name, REDIS_PORT) for name in NODES]
    for address in nodes:
        with redis.Redis.from_url(f"redis://{address}") as client:
            rings = (str(key) for key in client.keys("{queue:bloom:*}:ring"))
            blocks = [key for key in rings if re.search(r"bloom:\d+}", key)]
            assert 2 <= len(blocks) <= 10
    with redis.Redis.from_url(f"redis://{project.address('queue', REDIS_PORT)}") as client:
        assert client.info("commandstats").keys() >= {"cmdstat_zadd", "cmdstat_zrange"}
        assert not client.keys("*bloom*")
    connection = connect(f"redis+cluster://{','.join(nodes)}")
    try:
        web = project.directory / "web.1"
        truth = Site.open(web / "magazine").truth()
        recorded = BloomFilter(connection.client, "queue:bloom").info().count
        assert recorded == pytest.approx(len(truth.lasting), rel=0.05)
    finally:
        connection.close()


def test_prepare_runs_again_on_the_same_cluster(project: Project) -> None:
    """As with `docker compose up` on containers that are there."""
    prepare = next(service for service in project.services if service.name == "prepare")
    again = Service("prepare-again", prepare.command)
    with Project([*project.services, again], project.directory) as second:
        second.ports = project.ports
        second.start_one(again)
        second.wait("prepare-again")
        assert "The cluster is ready" in second.log("prepare-again")


# -- the files --


def test_the_image_has_what_the_services_run() -> None:
    """The Dockerfile names files and extras that are there; services are built from it."""
    text = (COMPOSE.parent / "Dockerfile").read_text("utf-8")
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY")]
    sources = [source for sources in copied for source in sources]
    assert "scrapy_bloom" in sources
    assert all((ROOT / source).exists() for source in sources)
    extras = re.findall(r'"/source\[(.*)\]"', text)[0].split(",")
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert all(f"\n{extra} = [" in project for extra in extras)
    given = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
    for service in given.values():
        program = service["command"][0]
        assert ("build" in service) == (program != "valkey-server")
        if "build" in service:
            build = service["build"]
            path = COMPOSE.parent / build["context"] / build["dockerfile"]
            assert path.resolve() == COMPOSE.parent / "Dockerfile"
        else:
            assert service["image"].startswith("valkey/valkey:")
