"""A run does its own work first, then picks up what others left: real spiders depend on it.

The site holds answers back where the order would depend on how fast a crawl is.
"""

from contextlib import ExitStack
from typing import Any

from support.odd_site import ERROR, Crawl, Lab, LabOf, Reply, kinds, page
from support.polling import until

SETTINGS: dict[str, Any] = {"BLOOM_HEARTBEAT": 1, "RETRY_ENABLED": False}


def beats(lab: Lab) -> float:
    """Return until when the youngest worker counts as alive: its heartbeats put it off."""
    (key,) = lab.client.keys("*:workers:*")
    (youngest,) = lab.client.zrevrange(key, 0, 0, withscores=True)
    return float(youngest[1])


def wait_for_beats(lab: Lab, count: int) -> None:
    """Wait until a worker has sent so many heartbeats more, each a second later."""
    before = beats(lab)
    until(lambda: beats(lab) >= before + count, "heartbeats are sent")


# -- spiders as people write them --

NEWS = """
from scrapy.exceptions import CloseSpider

class NewsSpider(OddSpider):
    custom_settings = {"CONCURRENT_REQUESTS": 1}

    def parse(self, response):
        return self.links(response, callback=self.parse_article)

    def parse_article(self, response):
        day = response.url.rpartition("/")[2].partition("-")[0]
        if int(day) < self.settings.getint("TODAY"):
            raise CloseSpider("old")
"""


def test_a_news_spider_that_stops_at_the_first_old_article_gets_all_new_ones(
    lab_of: LabOf,
) -> None:
    """The old one that it stops at is pending; picked up first, it would stop the next run."""
    days = {day: [f"/{day}-{number}" for number in range(20)] for day in range(5)}
    lab = lab_of({path: page() for articles in days.values() for path in articles})
    fetched = []
    for today in (1, 2, 3, 4):
        lab.site.pages["/"] = page(*days[today], *days[today - 1])
        done = lab.crawl(NEWS, TODAY=today, **SETTINGS)
        fetched.append(len(done.hits.keys() & {*days[today]}))
    assert fetched == [20] * 4


LOGIN = """
class LoginSpider(OddSpider):
    async def start(self):
        yield Request(self.settings["SITE_URL"] + "/login", self.parse_start, dont_filter=True)

    def parse_start(self, response):
        yield response.follow("/start", self.parse, dont_filter=True)
"""


def test_pages_of_a_killed_run_are_fetched_after_the_login(lab_of: LabOf) -> None:
    """Without its cookie, they'd redirect to the login, and count as crawled."""
    member = Reply(needs="member=1")
    links = [f"/{number}" for number in range(20)]
    lab = lab_of({"/login": Reply(cookie="member=1"), **dict.fromkeys(links, member)})
    lab.site.pages["/start"] = Reply(links, needs="member=1")
    lab.kill_midway(6, LOGIN, **SETTINGS)
    lab.site.pages["/start"] = member
    lab.site.hold("/login")
    with lab.start(LOGIN, **SETTINGS) as crawl:
        crawl.until(lambda: lab.site.held, "it logs in")
        wait_for_beats(lab, 2)  # as good as ever to pick something up
        lab.site.release()
        crawl.wait()
    assert lab.site.hits()["/login"] == 2
    assert lab.recorded() >= {*links}


# -- runs that are busy --


def test_a_run_that_is_never_idle_crawls_what_others_left_in_turns_with_its_own(
    lab_of: LabOf,
) -> None:
    left = [f"/left/{number}" for number in range(50)]
    lab = lab_of({"/": page(*left), **dict.fromkeys(left, page())})
    lab.kill_midway(1, **SETTINGS)
    lab.site.pages["/"] = page("/1")
    lab.site.rest = lambda path: page(*(f"/{2 * int(path[1:]) + more}" for more in (0, 1)))
    before = len(lab.site.fetches)
    with lab.start(**SETTINGS) as crawl:
        crawl.until(lambda: lab.site.hits().keys() >= {*left}, "it has crawled what was left")
        crawl.ask_to_stop()
        crawl.wait()
    own = [fetch.path for fetch in lab.site.fetches[before : before + 200]]
    assert not {*left} & {*own}


DOWNLOADS = 2


def test_a_busy_worker_shares_though_pages_are_left_that_it_has_no_room_for(
    lab_of: LabOf,
) -> None:
    """Another worker has been killed, and a page that failed is ready to be retried."""
    links = [f"/{number}" for number in range(400)]
    lab = lab_of({"/": page(*links), "/other": page("/left", "/failed"), "/failed": ERROR})
    lab.site.pages |= dict.fromkeys([*links, "/left"], page())
    lab.site.hold("/left", *links)
    settings = {**SETTINGS, "CONCURRENT_REQUESTS": DOWNLOADS}
    with ExitStack() as stack:

        def start(path: str = "") -> Crawl:
            return stack.enter_context(lab.start(START=path, **settings))

        killed = start("/other")
        killed.until(lambda: kinds(lab.claims()).get("/failed") == "-", "a page has failed")
        busy = start("/")
        busy.until(lambda: lab.site.held == 1 + DOWNLOADS, "it's busy")
        lab.make_due()
        killed.kill()
        lab.site.pages["/failed"] = page()
        lab.site.release("/left")
        wait_for_beats(lab, 2)
        idle = start()
        idle.until(
            lambda: len({*links} & lab.site.hits().keys()) > DOWNLOADS,
            "it has some of the busy one's requests",
        )
        lab.site.release()
        for crawl in (busy, idle):
            crawl.wait()
    assert lab.recorded() == {*links, "/left", "/failed"}
    assert not lab.claims()


# -- pages that stop the spider --

STOPPING = """
from scrapy.exceptions import CloseSpider

class StoppingSpider(OddSpider):
    def parse(self, response):
        if response.url.endswith("/bad"):
            raise CloseSpider("banned")
        return self.links(response)
"""


def test_a_page_that_stops_each_run_is_given_up_after_five(lab_of: LabOf) -> None:
    lab = lab_of({"/": page("/bad"), "/bad": page()})
    for runs in range(1, 6):
        done = lab.crawl(STOPPING, **SETTINGS)
        assert done.hits["/bad"] == 1
        assert done.claims["/bad"].attempt == runs
        lab.site.pages["/"] = page()
        lab.make_due()
    assert not lab.crawl(STOPPING, **SETTINGS).hits["/bad"]
