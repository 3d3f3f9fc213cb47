"""Outputs are gathered as long as they come without waiting, looked up together and passed on."""

import asyncio
import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.signalmanager import SignalManager
from scrapy.utils.test import get_crawler
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom import ConfigurationError
from scrapy_bloom.bloom.protocol.verdicts import Verdict
from scrapy_bloom.crawl import outputs as outputs_module
from scrapy_bloom.crawl.claims.policy import Lookup
from scrapy_bloom.crawl.engine_hooks import EngineAdapter
from scrapy_bloom.crawl.outputs import Outputs

#: Seconds after which what waits would wait for ever.
PATIENCE = 20.0
PAGE, RESPONSE = Request("https://example.com/"), Response("https://example.com/")
ITEM = {"an": "item"}
NEW, SEEN, MINE_UNKEPT = Verdict.NEW, Verdict.SEEN, Verdict.MINE_UNKEPT


def link(name: object = 0) -> Request:
    return Request(f"https://example.com/{name}")


def links(count: int) -> list[Request]:
    return [link(number) for number in range(count)]


class Scraper:
    """Processes lists of outputs as Scrapy's does: ``concurrent_items`` at a time."""

    def __init__(self, concurrent_items: int = 100) -> None:
        self.concurrent_items = concurrent_items
        self.lists: list[list[Any]] = []
        #: Outputs that are processed, in the order in which that ended.
        self.done: list[Any] = []
        self.errors: list[BaseException] = []
        self.parallel = self.most_parallel = 0

    async def pipeline(self, item: Any) -> None:
        """Process an item; replaced by tests."""

    async def handle_spider_output_async(
        self, result: Any, request: Request, response: Response
    ) -> None:
        assert (request, response) == (PAGE, RESPONSE)
        workers = asyncio.Semaphore(self.concurrent_items)
        self.lists.append(result)

        async def process(output: Any) -> None:
            async with workers:
                if not isinstance(output, Request):
                    self.parallel += 1
                    self.most_parallel = max(self.most_parallel, self.parallel)
                    await self.pipeline(output)
                    self.parallel -= 1
                self.done.append(output)

        await asyncio.gather(*map(process, result))

    def handle_spider_error(self, _failure: Failure, request: Request, response: Any) -> None:
        assert (request, response) == (PAGE, RESPONSE)
        assert _failure.value is not None
        self.errors.append(_failure.value)

    @property
    def flat(self) -> list[Any]:
        return [output for one in self.lists for output in one]


class Deduplicator:
    """Knows some requests to be duplicates, and finds out about others."""

    def __init__(self) -> None:
        self.known: list[Request] = []
        self.verdicts: dict[Request, Verdict] = {}
        self.seen = 0
        self.broken: list[Request] = []
        self.rounds: list[list[Request]] = []
        self.dropped: list[Request] = []
        self.lost: list[Request] = []
        self.noted: list[Request] = []

    def prepare(self, request: Request) -> Lookup | None:
        if request in self.broken:
            raise LookupError
        verdict = SEEN if request in self.known else None
        key = "", request.url.encode()
        return None if request.dont_filter else Lookup(key, request, verdict)

    async def decide_many(self, lookups: Sequence[Lookup]) -> None:
        self.rounds.append([lookup.request for lookup in lookups])
        for lookup in lookups:
            lookup.verdict = self.verdicts.get(lookup.request, NEW)

    def count_seen(self, lookup: Lookup) -> None:
        self.seen += 1

    def log(self, request: Request, spider: Spider) -> None:
        self.dropped.append(request)

    def lost_link(self, page: Request, error: Exception) -> None:
        assert page is PAGE
        assert isinstance(error, LookupError)
        self.lost.append(page)

    def yields(self, page: Request) -> Callable[[Request], None] | None:
        assert page is PAGE
        return self.noted.append


def outputs(crawler: Any) -> Outputs:
    deduplicator: Any = Deduplicator()
    return Outputs(crawler, deduplicator, 64, deduplicator.log)


class Lab:
    """A scraper whose outputs are looked up."""

    def __init__(self, batch: int = 64, concurrent_items: int = 100) -> None:
        self.scraper, self.filter = Scraper(concurrent_items), Deduplicator()
        self.offsite: list[Request] = []
        middleware = SimpleNamespace(should_follow=lambda one, spider: one not in self.offsite)
        self.signals = SignalManager(self)
        crawler: Any = SimpleNamespace(
            spider=Spider("shop"),
            signals=self.signals,
            get_downloader_middleware=lambda _: middleware,
        )
        deduplicator: Any = self.filter
        Outputs(crawler, deduplicator, batch, self.filter.log).hook(self.scraper)

    async def handle(self, outputs: Any) -> None:
        await self.scraper.handle_spider_output_async(outputs, PAGE, RESPONSE)


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in a loop of its own, in which no task may be left at the end."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(*args, **kwargs), PATIENCE)
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(bounded())

    return run


# -- forms of output --


async def generate(outputs: Sequence[Any]) -> AsyncIterator[Any]:
    for output in outputs:
        yield output


class Ready:
    """Can be awaited, and is no coroutine."""

    def __init__(self, outputs: Iterator[Any]) -> None:
        self.outputs = outputs

    def __await__(self) -> Iterator[Any]:
        for output in self.outputs:
            return output
        raise StopAsyncIteration
        yield


class Countdown(AsyncIterator[Any]):
    """An asynchronous iterator that is no generator."""

    def __init__(self, outputs: Sequence[Any]) -> None:
        self.outputs = iter(outputs)

    def __anext__(self) -> Any:
        return Ready(self.outputs)


FORMS = pytest.mark.parametrize(
    "form",
    [list, tuple, iter, generate, Countdown],
    ids=["list", "tuple", "iterator", "asynchronous generator", "asynchronous iterator"],
)


@FORMS
@in_loop
async def test_what_is_ready_is_looked_up_once_and_passed_on_as_a_list(form: Any) -> None:
    lab, (first, second) = Lab(), links(2)
    outputs = [first, ITEM, second, None]
    await lab.handle(form(outputs))
    assert lab.filter.rounds == [[first, second]]
    assert lab.scraper.lists == [outputs]
    assert lab.scraper.concurrent_items == len(outputs)
    assert lab.filter.noted == [first, second]


@FORMS
@in_loop
async def test_where_nothing_is_left_nobody_is_started(form: Any) -> None:
    lab, (known, other) = Lab(), links(2)
    lab.filter.known, lab.filter.verdicts = [known], {other: SEEN}
    await lab.handle(form([known, other]))
    await lab.handle(form([]))
    assert lab.filter.rounds == [[other]]
    assert lab.filter.dropped == [known, other]
    assert lab.scraper.lists == []
    assert lab.filter.noted == []


@FORMS
@in_loop
async def test_items_only_take_no_round(form: Any) -> None:
    lab = Lab()
    await lab.handle(form([ITEM] * 3))
    assert lab.scraper.lists == [[ITEM] * 3]
    assert lab.filter.rounds == []


@in_loop
async def test_receivers_are_told_of_what_is_dropped() -> None:
    lab, (known, other, new) = Lab(), links(3)
    lab.filter.known, lab.filter.verdicts = [known], {other: SEEN}
    told = []

    def receive(request: Request) -> None:
        told.append(request)

    lab.signals.connect(receive, signals.request_dropped)
    await lab.handle([known, other, new])
    assert told == lab.filter.dropped == [known, other]


@in_loop
async def test_a_url_that_is_yielded_twice_is_looked_up_once() -> None:
    lab, (first, second, same) = Lab(), [link(1), link(2), link(1)]
    await lab.handle([first, second, same])
    assert lab.filter.rounds == [[first, second]]
    assert lab.scraper.flat == [first, second, same]  # the scheduler drops it


@in_loop
async def test_what_is_not_looked_up_keeps_its_place() -> None:
    lab, (first, offsite, last) = Lab(), links(3)
    unfiltered, lab.offsite = first.replace(dont_filter=True), [offsite]
    await lab.handle([first, unfiltered, offsite, last])
    assert lab.filter.rounds == [[first, last]]
    assert lab.scraper.flat == [first, unfiltered, offsite, last]


@in_loop
async def test_a_request_that_is_claimed_and_not_kept_goes_on_to_the_scheduler() -> None:
    """It tells the page to wait for it."""
    lab, one = Lab(), link()
    lab.filter.verdicts = {one: MINE_UNKEPT}
    await lab.handle([one])
    assert lab.scraper.flat == lab.filter.noted == [one]


@in_loop
async def test_a_link_without_a_fingerprint_is_dropped_and_the_others_go_on() -> None:
    lab, (first, broken, last) = Lab(), links(3)
    lab.filter.broken = [broken]
    await lab.handle([first, broken, last])
    assert lab.scraper.flat == [first, last]
    assert lab.filter.lost == [PAGE]


@in_loop
async def test_without_batches_nothing_is_looked_up_and_all_is_noted() -> None:
    lab, requests = Lab(batch=0), links(100)
    lab.filter.known = requests[:1]
    await lab.handle(generate([*requests, ITEM]))
    assert lab.filter.rounds == []
    assert lab.filter.noted == requests
    assert lab.scraper.flat == [*requests, ITEM]


# -- many outputs --


@FORMS
@in_loop
async def test_many_links_are_looked_up_in_batches_and_the_loop_goes_on(form: Any) -> None:
    lab, requests, turns = Lab(batch=10), links(1_000), 0

    async def other() -> None:
        nonlocal turns
        while len(lab.scraper.done) < 1_000:
            turns += 1
            await asyncio.sleep(0)

    await asyncio.gather(lab.handle(form(requests)), other())
    assert [len(some) for some in lab.filter.rounds] == [10] * 100
    assert lab.scraper.flat == requests
    assert turns >= 1_000 // outputs_module.MAX_PER_TURN


@in_loop
async def test_the_loop_goes_on_while_duplicates_are_dropped() -> None:
    lab, known, is_over = Lab(), link(), False
    lab.filter.known = [known]

    async def callback() -> AsyncIterator[Any]:
        while not is_over:
            yield known

    page = asyncio.ensure_future(lab.handle(callback()))
    await asyncio.sleep(0)
    is_over = True
    await page


@FORMS
@pytest.mark.parametrize("limit", [1, 3])
@in_loop
async def test_so_many_items_are_processed_at_a_time(form: Any, limit: int) -> None:
    lab = Lab(concurrent_items=limit)
    lab.scraper.pipeline = lambda _: asyncio.sleep(0)  # type: ignore[method-assign]
    await lab.handle(form([*[ITEM] * 20, *links(5)]))
    assert lab.scraper.most_parallel == limit
    assert len(lab.scraper.done) == 25


@in_loop
async def test_items_do_not_split_batches_of_links_where_there_is_room_for_them() -> None:
    lab, requests = Lab(concurrent_items=2), links(20)
    await lab.handle([ITEM, *requests])
    assert lab.filter.rounds == [requests]
    assert lab.scraper.concurrent_items == 21


@FORMS
@in_loop
async def test_links_do_not_wait_for_an_item_that_takes_long(form: Any) -> None:
    lab, requests, is_done = Lab(), links(500), asyncio.Event()
    lab.scraper.pipeline = lambda _: is_done.wait()  # type: ignore[assignment]
    page = asyncio.ensure_future(lab.handle(form([ITEM, *requests])))
    while len(lab.scraper.done) < 500 - 64:
        await asyncio.sleep(0)
    is_done.set()
    await page
    assert len(lab.scraper.done) == 501


# -- callbacks that wait --


@pytest.mark.parametrize("output", [link(), ITEM], ids=["request", "item"])
@in_loop
async def test_a_callback_may_wait_for_what_it_has_yielded(output: Any) -> None:
    """Were it held until the callback goes on, both would wait for ever."""
    lab, last = Lab(), link("last")

    async def callback() -> AsyncIterator[Any]:
        yield output
        while output not in lab.scraper.done:
            await asyncio.sleep(0)
        yield last

    await lab.handle(callback())
    assert lab.scraper.lists == [[output], [last]]


@in_loop
async def test_a_callback_goes_on_while_its_items_are_processed() -> None:
    lab, all_are_there = Lab(), asyncio.Event()
    lab.scraper.pipeline = lambda _: all_are_there.wait()  # type: ignore[assignment]

    async def callback() -> AsyncIterator[Any]:
        for _ in range(10):
            yield ITEM
            await asyncio.sleep(0)
        all_are_there.set()

    await lab.handle(callback())
    assert lab.scraper.done == [ITEM] * 10


@in_loop
async def test_a_callback_that_waits_does_not_exceed_the_items_at_a_time() -> None:
    lab = Lab(concurrent_items=3)
    lab.scraper.pipeline = lambda _: asyncio.sleep(0)  # type: ignore[method-assign]

    async def callback() -> AsyncIterator[Any]:
        for number in range(20):
            yield ITEM
            yield link(number)
            await asyncio.sleep(0)

    await lab.handle(callback())
    assert 1 <= lab.scraper.most_parallel <= 3
    assert len(lab.scraper.done) == 40


@in_loop
async def test_all_of_a_callback_runs_in_one_task() -> None:
    lab, tasks = Lab(batch=2, concurrent_items=2), set()

    async def callback() -> AsyncIterator[Any]:
        for number in range(200):
            tasks.add(asyncio.current_task())
            yield link(number) if number % 3 else ITEM
            tasks.add(asyncio.current_task())
            if number % 7 == 0:
                await asyncio.sleep(0)

    await lab.handle(callback())
    assert len(tasks) == 1
    assert len(lab.scraper.done) == 200


@in_loop
async def test_two_callbacks_do_not_wait_for_each_other() -> None:
    lab, first_is_on = Lab(), asyncio.Event()

    async def waiting() -> AsyncIterator[Any]:
        yield "begun"
        await first_is_on.wait()
        yield "over"

    async def waking() -> AsyncIterator[Any]:
        first_is_on.set()
        yield "woken"

    await asyncio.gather(lab.handle(waiting()), lab.handle(waking()))
    assert sorted(lab.scraper.done) == ["begun", "over", "woken"]


@in_loop
async def test_requests_keep_their_order_though_some_are_looked_up_and_others_not() -> None:
    lab, goes_on = Lab(), asyncio.Event()
    first, second = link(1), link(2).replace(dont_filter=True)
    ask = lab.filter.decide_many

    async def slow(questions: Sequence[Lookup]) -> None:
        await goes_on.wait()
        await ask(questions)

    async def callback() -> AsyncIterator[Any]:
        yield first
        await asyncio.sleep(0)
        yield second
        await asyncio.sleep(0)
        goes_on.set()

    lab.filter.decide_many = slow  # type: ignore[method-assign]
    await lab.handle(callback())
    assert lab.scraper.flat == [first, second]


# -- exceptions --


@pytest.mark.parametrize("before", [0, 1, 100])
@pytest.mark.parametrize("is_waiting", [False, True])
@in_loop
async def test_an_exception_comes_after_what_was_yielded_before(
    before: int, is_waiting: bool
) -> None:
    lab, requests, error = Lab(), links(before), ValueError("of the callback")

    async def callback() -> AsyncIterator[Any]:
        for request in requests:
            yield request
        if is_waiting:
            await asyncio.sleep(0)
        raise error

    await lab.handle(callback())
    assert lab.scraper.flat == requests
    assert lab.scraper.errors == [error]


@in_loop
async def test_a_generator_that_raises() -> None:
    lab, first = Lab(), link()

    def callback() -> Iterator[Any]:
        yield first
        raise ValueError

    await lab.handle(callback())
    assert lab.scraper.flat == [first]
    assert len(lab.scraper.errors) == 1


@in_loop
async def test_what_goes_on_after_an_exception_is_read_to_its_end() -> None:
    """As the iterators of Scrapy's spider middlewares do."""
    lab, first, last = Lab(), link(1), link(2)

    class Odd:
        outputs = iter([first, ValueError(), last])

        def __iter__(self) -> "Odd":
            return self

        def __next__(self) -> Any:
            output = next(self.outputs)
            if isinstance(output, Exception):
                raise output
            return output

    await lab.handle(Odd())
    assert lab.scraper.flat == [first, last]
    assert len(lab.scraper.errors) == 1


@in_loop
async def test_what_precedes_a_cancellation_is_passed_on() -> None:
    """Such as one by the callback, which awaits a task that was cancelled."""
    lab, first = Lab(), link()

    async def callback() -> AsyncIterator[Any]:
        yield first
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await lab.handle(callback())
    while not lab.scraper.done:
        await asyncio.sleep(0)
    assert lab.scraper.flat == [first]


@in_loop
async def test_a_cancellation_comes_where_the_callback_waits() -> None:
    lab, is_waiting, was_cancelled = Lab(), asyncio.Event(), False

    async def callback() -> AsyncIterator[Any]:
        nonlocal was_cancelled
        yield ITEM
        is_waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled = True
            raise

    task = asyncio.ensure_future(lab.handle(callback()))
    await is_waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert was_cancelled
    assert lab.scraper.done == [ITEM]


# -- time-outs of the callback --

needs_time_outs = pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.timeout is new")


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop has its turn after each output."""
    monkeypatch.setattr(outputs_module, "MAX_PER_TURN", 1)


@needs_time_outs
@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("limit", [1, 100])
@in_loop
async def test_a_time_out_ends_what_the_callback_waits_for(limit: int) -> None:
    """It is up while the loop has its turn, or the pipeline has no room for the next item."""
    lab = Lab(concurrent_items=limit)

    async def callback() -> AsyncIterator[Any]:
        try:
            async with asyncio.timeout(60) as scope:
                yield ITEM
                scope.reschedule(0)
                for _ in range(5):
                    yield ITEM
                await asyncio.Event().wait()
        except TimeoutError:
            yield "timed out"
        await asyncio.sleep(0)
        yield "over"

    lab.scraper.pipeline = lambda _: asyncio.sleep(0)  # type: ignore[method-assign]
    await lab.handle(callback())
    assert lab.scraper.flat == [*[ITEM] * 6, "timed out", "over"]
    assert lab.scraper.errors == []


@needs_time_outs
@pytest.mark.usefixtures("short_turns")
@in_loop
async def test_a_time_out_that_is_left_before_anything_was_waited_for_is_none() -> None:
    lab = Lab()

    async def callback() -> AsyncIterator[Any]:
        async with asyncio.timeout(0):
            yield ITEM
            yield ITEM
        for _ in range(3):
            await asyncio.sleep(0)
        yield "over"

    await lab.handle(callback())
    assert lab.scraper.flat == [ITEM, ITEM, "over"]


@in_loop
async def test_a_time_out_while_the_callback_waits_ends_that() -> None:
    lab = Lab()

    async def callback() -> AsyncIterator[Any]:
        yield ITEM
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except (TimeoutError, asyncio.TimeoutError):
            yield "timed out"

    await lab.handle(callback())
    assert lab.scraper.flat == [ITEM, "timed out"]


# -- without asyncio --


class Blocking(Scraper):
    """Processes outputs one after the other."""

    async def handle_spider_output_async(
        self, result: Any, request: Request, response: Response
    ) -> None:
        for output in result:
            await self.pipeline(output)
            self.done.append(output)
        self.lists.append(result)


def handle_without_asyncio(lab: Lab, outputs: Any) -> list[Any]:
    """Return where the result comes in."""
    results: list[Any] = []
    Deferred.fromCoroutine(lab.handle(outputs)).addBoth(results.append)
    return results


@pytest.fixture
def blocking(monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(f"{__name__}.Scraper", Blocking)
    return Lab(batch=10)


@FORMS
def test_without_asyncio_links_are_looked_up_in_batches(blocking: Lab, form: Any) -> None:
    requests = links(25)
    assert handle_without_asyncio(blocking, form([ITEM, *requests])) == [None]
    assert [len(some) for some in blocking.filter.rounds] == [10, 10, 5]
    assert blocking.scraper.flat == [ITEM, *requests]


def test_without_asyncio_a_callback_may_wait_for_what_it_has_yielded(blocking: Lab) -> None:
    first, last, waited_for = link(1), link(2), Deferred[None]()

    async def callback() -> AsyncIterator[Any]:
        yield first
        await waited_for
        yield last

    results = handle_without_asyncio(blocking, callback())
    assert blocking.scraper.done == [first]
    assert not results
    waited_for.callback(None)
    assert blocking.scraper.done == [first, last]
    assert results == [None]


def test_without_asyncio_a_page_waits_until_there_is_room_for_its_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{__name__}.Scraper", Blocking)
    lab, processing = Lab(concurrent_items=1), list[Deferred[None]]()

    async def pipeline(_: Any) -> None:
        processing.append(Deferred())
        await processing[-1]

    lab.scraper.pipeline = pipeline  # type: ignore[method-assign]
    results = handle_without_asyncio(lab, generate([1, 2, 3]))
    for number in (1, 2, 3):
        assert not results
        assert len(processing) == number
        processing[-1].callback(None)
    assert results == [None]
    assert lab.scraper.done == [1, 2, 3]


# -- methods of another form --


class SynchronousScraper(Scraper):
    def handle_spider_output_async(self, result: Any, request: Any, response: Any) -> Any: ...


class OtherScraper(Scraper):
    async def handle_spider_output_async(self, result: Any, page: Any) -> None: ...  # type: ignore[override]


class OtherErrors(Scraper):
    def handle_spider_error(self, request: Request, failure: Failure) -> None:  # type: ignore[override]
        ...


@pytest.mark.parametrize(
    ("scraper", "what"),
    [
        (SynchronousScraper(), "handle_spider_output_async is no coroutine function"),
        (OtherScraper(), "OtherScraper.handle_spider_output_async takes"),
        (OtherErrors(), "OtherErrors.handle_spider_error takes"),
        (object(), "has no attribute 'handle_spider_output_async'"),
    ],
    ids=["no coroutine", "parameters", "errors", "nothing"],
)
def test_an_unknown_form_is_an_error_before_the_first_page(scraper: Any, what: str) -> None:
    crawler: Any = SimpleNamespace(engine=SimpleNamespace(scraper=scraper))
    with pytest.raises(ConfigurationError, match="set BLOOM_BATCH = 0") as raised:
        EngineAdapter(crawler).hook_scraper(outputs(crawler).hook)
    assert what in str(raised.value)


def test_without_an_engine_nothing_is_replaced() -> None:
    crawler: Crawler = get_crawler(Spider)
    EngineAdapter(crawler).hook_scraper(outputs(crawler).hook)
