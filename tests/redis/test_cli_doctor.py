"""``scrapy bloom doctor``: what it finds, and that it changes nothing."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from redis import Redis
from scrapy import Request
from support.cli import KEY, SECRET, URLS, Call, Done, Own, Shop, fingerprints, unchanged
from support.rights import PASSWORD, USER, user_of
from support.servers import Server, free_port

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli import doctor as doctor_module
from scrapy_bloom.cli.doctor import check_place
from scrapy_bloom.cli.doctor_checks import OF_SERVER, Check, ServerFacts, check
from scrapy_bloom.crawl.advice import Finding

OURS = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}
SHARED = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler", "SCHEDULER_PERSIST": True}
SELECT = "twisted.internet.selectreactor.SelectReactor"


class Crooked:
    """Returns another fingerprint each time."""

    def fingerprint(self, request: Request) -> bytes:
        return random.randbytes(20)


class Slow:
    def fingerprint(self, request: Request) -> bytes:
        time.sleep(0.001)
        return request.url.encode()


class NoFingerprinter:
    def fingerprint(self, request: Request) -> str:
        return request.url


class Wrong(Shop):
    name = "wrong"
    custom_settings: ClassVar = {"BLOOM_CAPACITY": "many"}  # type: ignore[misc]


def problems(done: Done) -> dict[str, list[str]]:
    """Return what is wrong, by check: problems with reasons and remedies."""
    found: dict[str, list[str]] = {}
    for one in done.json["checks"]:
        if one["state"] == "problem":
            parts = [one["problem"], one["why"], one["remedy"]]
            assert all(parts)
            found.setdefault(one["check"], []).append(" | ".join(parts))
    assert done.json["problems"] == sum(map(len, found.values()))
    assert done.code == (1 if found else 0)
    return found


def states(done: Done) -> dict[str, str]:
    return {one["check"]: one["state"] for one in done.json["checks"]}


@contextmanager
def option(client: Redis, name: str, value: str) -> Iterator[None]:
    before = str(client.config_get(name)[name])
    client.config_set(name, value)
    try:
        yield
    finally:
        client.config_set(name, before)


@pytest.fixture
def saving(client: Redis) -> Iterator[None]:
    """The server keeps its data."""
    with option(client, "save", "3600 1"):
        yield


@pytest.fixture
def doctor(shop: Call, saving: None) -> Call:
    return lambda **settings: shop("doctor", "--json", **{**OURS, **settings})


@pytest.mark.each_server(others="slow")
@pytest.mark.usefixtures("saving")
def test_a_good_project_is_fine_and_a_missing_filter_is_no_problem(
    shop: Call, client: Redis
) -> None:
    done = shop("doctor", **OURS)
    assert (done.code, done.err) == (0, "")
    assert "filter shop:bloom: is not there yet, the first crawl creates it" in done.out
    assert "No problem found" in done.out
    assert client.dbsize() == 0
    BloomFilter(client, KEY).extend(fingerprints(URLS))
    done = shop("doctor", "--json", **OURS)
    assert problems(done) == {}
    assert {*states(done).values()} == {"fine"}


def test_stored_and_set_differ(doctor: Call, client: Redis) -> None:
    bloom = BloomFilter(client, KEY, capacity=1000, window="3 months", fingerprinter="other.Class")
    bloom.extend(fingerprints(URLS))
    with unchanged(client):
        (difference, fingerprinter) = problems(doctor())[f"filter {KEY}"]
        (refused, _) = problems(doctor(BLOOM_RECRAWL_AFTER="1 day"))[f"filter {KEY}"]
        (mismatch, _) = problems(doctor(BLOOM_BLOCKS=5))[f"filter {KEY}"]
    assert "BLOOM_RECRAWL_AFTER = never (stored: 3 months)" in difference
    assert "BLOOM_CAPACITY = 1,000,000 (stored: 1,000)" in difference
    assert 'set BLOOM_RECRAWL_AFTER = "3 months", BLOOM_ROTATE_EVERY = "1 month"' in difference
    assert "fingerprints of 'other.Class'" in fingerprinter
    assert "refuses to open the filter | Run 'scrapy bloom settings --apply' once" in refused
    assert "BLOOM_BLOCKS = 16, but BLOOM_BLOCKS is 5 | a crawl refuses" in mismatch
    client.delete(f"{{{KEY}:2}}:ring")
    assert "1 of 16 blocks are gone" in problems(doctor())[f"filter {KEY}"][-1]
    client.hset(f"{{{KEY}:0}}:header", "seeds", "[1")
    assert "cannot use the Redis key" in problems(doctor())[f"filter {KEY}"][0]


def test_a_server_that_is_down_is_the_finding_and_the_rest_is_checked(doctor: Call) -> None:
    url = f"redis://:{SECRET}@127.0.0.1:{free_port()}"
    done = doctor(BLOOM_REDIS_URL=url, BLOOM_SEEDS=[*range(18)], DUPEFILTER_CLASS="x.Y")
    assert problems(done).keys() == {"server", "seeds", "dupefilter"}
    assert "is not there" in problems(done)["server"][0]
    assert SECRET not in done.out + done.err
    assert doctor(BLOOM_REDIS_URL=url, spiders=(Shop, Own)).json["problems"] == 1


def test_wrong_settings_are_the_findings_all_of_them(doctor: Call) -> None:
    wrong = {"BLOOM_CAPACITY": "many", "BLOOM_CAPACTIY": 7, "BLOOM_FLUSH": "never"}
    found = problems(doctor(**wrong))
    assert [*found] == ["settings"]
    assert {text.split()[0] for text in found["settings"]} == wrong.keys()
    contradiction = doctor(BLOOM_RECRAWL_AFTER="5 months", BLOOM_ROTATE_EVERY="2 months")
    assert "is a multiple of the period" in problems(contradiction)["settings"][0]
    assert states(contradiction)["server"] == "fine"
    for settings in ({"BLOOM_REDIS_PARAMS": "x"}, {"BLOOM_KEY": "a{b"}):
        done = doctor(**settings)
        assert [*problems(done)] == ["settings"]
        assert states(done)["server"] == "unknown"
    assert "the forms are redis://" in problems(doctor(BLOOM_REDIS_URL="http://x"))["server"][0]


@pytest.mark.usefixtures("saving")
def test_each_spider_is_checked_and_named(call: Call, server: Server) -> None:
    project = {"spiders": (Shop, Own, Wrong), "BLOOM_REDIS_URL": server.unix_url, **OURS}
    done = call("doctor", "--json", **project)
    assert [*problems(done)] == ["settings"]
    filters = {name for name in states(done) if "filter " in name}
    assert filters == {"filter shop:bloom", "filter special", "filter wrong:bloom"}
    assert "PROBLEM settings (spider wrong): BLOOM_CAPACITY" in call("doctor", **project).out
    assert call("doctor", "--spider", "own", **project).code == 0
    assert call("doctor", "--spider", "nobody", **project).code == 2


@pytest.mark.parametrize(
    ("settings", "check", "text"),
    [
        ({"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}, "dupefilter", "not BloomDupe"),
        (
            SHARED
            | {"DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"}
            | {"SCHEDULER_DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"},
            "dupefilter",
            "nothing reads SCHEDULER_DUPEFILTER_CLASS",
        ),
        (SHARED | {"SCHEDULER_FLUSH_ON_START": True}, "flush", "whenever a worker starts"),
        ({"SCHEDULER": "no.Such"}, "queue", "SCHEDULER = 'no.Such' cannot be used"),
        ({"BLOOM_REMEMBER": "scheduled", "JOBDIR": "j"}, "queue", "the queue in JOBDIR is lost"),
        ({"TWISTED_REACTOR": SELECT}, "reactor", "runs no asyncio loop"),
        ({"REQUEST_FINGERPRINTER_CLASS": Crooked}, "fingerprinter", "another fingerprint for the"),
        ({"REQUEST_FINGERPRINTER_CLASS": Slow}, "fingerprinter", "us a request"),
        ({"REQUEST_FINGERPRINTER_CLASS": NoFingerprinter}, "fingerprinter", "cannot be used"),
        ({"HTTPCACHE_ENABLED": True}, "HTTP cache", "never expires"),
        ({"BLOOM_MAX_MEMORY": "1 KB"}, "settings", "BLOOM_MAX_MEMORY = 1,000 is less than"),
        ({"BLOOM_SEEDS": [1, 2, 3]}, "seeds", "BLOOM_SEEDS lists the seeds"),
        ({"BLOOM_WAIT_REPLICAS": 1}, "replicas", "had 0 replicas"),
    ],
)
def test_what_is_wrong_with_a_project(
    doctor: Call, settings: dict[str, Any], check: str, text: str
) -> None:
    found = problems(doctor(**settings))
    assert [*found] == [check]
    assert text in found[check][0]


def test_what_is_wrong_with_a_server(doctor: Call, client: Redis) -> None:
    with option(client, "save", ""):
        assert "neither AOF nor snapshots" in problems(doctor())["persistence"][0]
    with option(client, "maxmemory-policy", "volatile-lru"):
        assert problems(doctor()) == {}
        found = problems(doctor(BLOOM_RECRAWL_AFTER="1 day"))
        assert "policy is volatile-lru" in found["eviction"][0]
    with option(client, "maxmemory", "20mb"):
        found = problems(doctor(BLOOM_CAPACITY="100M"))
        assert "more at full capacity, and maxmemory leaves the server" in found["memory"][0]
    # Claims that nothing takes over.
    BloomFilter(client, KEY).open()
    client.hset(f"{{{KEY}:0}}:claims", "x", "y")
    assert problems(doctor()) == {}
    found = problems(doctor(**SHARED, BLOOM_REMEMBER="scheduled"))
    assert "1 request is claimed" in found[f"filter {KEY}"][0]


def test_rights_that_are_missing(doctor: Call, server: Server) -> None:
    url = f"unix://{USER}:{PASSWORD}@{server.socket}"
    with user_of(server, "~*", "+@all", "-hset"):
        done = doctor(BLOOM_REDIS_URL=url)
        assert "may not run HSET" in problems(done)["rights"][0]
        assert PASSWORD not in done.out + done.err
    with user_of(server, "~*", "+@all", "-info", "-config", "-ping"):
        done = doctor(BLOOM_REDIS_URL=url)
        assert problems(done) == {}
        names = ("version", "kind", "eviction", "memory", "persistence")
        assert [states(done)[name] for name in names] == ["unknown"] * 5


def test_a_node_and_a_cluster(doctor: Call, nodes: list[Server]) -> None:
    address = f"127.0.0.1:{nodes[0].port}"
    found = problems(doctor(BLOOM_REDIS_URL=f"redis://{address}"))
    assert "redis+cluster://" in found["kind"][0]
    done = doctor(BLOOM_REDIS_URL=f"redis+cluster://{address}")
    assert problems(done).keys() == {"persistence"}
    assert '"a cluster of 3 primaries"' in done.out
    assert states(done)["rights"] == "fine"


def test_of_an_embedded_server(doctor: Call, data_dir: Path, own_tmp: Path) -> None:
    url = f"embedded:{data_dir}"
    assert "which is lost when" in problems(doctor(BLOOM_REDIS_URL=url))["place"][0]
    assert not data_dir.exists()
    data_dir.mkdir(mode=0o700)
    done = doctor(BLOOM_REDIS_URL=url)
    assert problems(done).keys() == {"place"}
    assert states(done)["persistence"] == "fine"


@pytest.mark.parametrize(
    ("directory", "container", "need", "text"),
    [
        ("/", [], 0, ""),
        ("/tmp", [], 0, "when the machine restarts"),
        ("/", ["/"], 0, "when the container is removed"),
        ("/", [], 1 << 60, " are free on the disk of /, and the filters take up to"),
    ],
)
def test_where_embedded_data_is(
    monkeypatch: pytest.MonkeyPatch, directory: str, container: list[str], need: int, text: str
) -> None:
    monkeypatch.setattr(doctor_module, "CONTAINER_FILES", container)
    found = [*filter(None, map(problem_of, check_place(Path(directory), need)))]
    assert len(found) == bool(text)
    assert text in "".join(found)


def problem_of(one: Check) -> str:
    return one.result.problem if isinstance(one.result, Finding) else ""


def checks(**server: Any) -> dict[str, Check]:
    """Return the checks of a server, of whose INFO these are the fields; ``need`` is ours."""
    need = server.pop("need", 0)
    server = {"redis_version": "7.2.0", "redis_mode": "standalone", **server}
    facts = ServerFacts("redis://x", 0.001, False, [server], ["60 1"], has_window=True, need=need)
    return {one.name: one for one in check(OF_SERVER, facts)}


SMALL = {"used_memory": "900", "total_system_memory": "1000", "maxmemory": "0", "need": 200}


@pytest.mark.parametrize(
    ("server", "name", "text"),
    [
        ({"redis_version": "6.2.14"}, "version", "the server is Redis 6.2.14"),
        ({"redis_mode": "sentinel"}, "kind", "is a sentinel, and no server"),
        ({"redis_mode": "", "server_mode": "cluster"}, "kind", "is a node of a cluster"),
        ({"role": "slave"}, "kind", "is a read-only replica"),
        ({"aof_last_write_status": "err"}, "persistence", "could not write to its disk"),
        (SMALL, "memory", "the memory of its machine leaves the server 100 bytes"),
    ],
)
def test_what_info_shows(server: dict[str, Any], name: str, text: str) -> None:
    assert text in problem_of(checks(**server)[name])
    assert checks()[name].state == ("unknown" if name == "memory" else "fine")
    assert checks(**SMALL | {"need": 100})["memory"].state == "fine"
