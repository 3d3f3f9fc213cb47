"""The page of ``scrapy bloom report``, without a server."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import support.infos

from scrapy_bloom.bloom.protocol.info import FilterInfo, GenerationInfo
from scrapy_bloom.cli.report import ClaimTally, Panel, WorkerRow, fits_until, page

DAY = 86_400
OPENED = 1_790_000_000
NEWEST = GenerationInfo(
    opened=OPENED,
    closes=OPENED + 30 * DAY,
    forgotten=OPENED + 90 * DAY,
    run=0,
    layers=1,
    capacity=1000,
    count=500,
    estimated_error_rate=1e-7,
    memory=4096,
)
INFO = replace(
    support.infos.INFO,
    key="k",
    capacity_in_all=3000,
    window="90 days",
    period="30 days",
    blocks=4,
    num_hashes=17,
    num_bits=32_768,
    count=500,
    estimated_error_rate=1e-7,
    error_bound=1e-5,
    memory=4096,
    generations=(NEWEST,),
    now=OPENED + 10 * DAY,
)
HOSTILE = "</title></style><script>x</script>\"'&"


def with_newest(**changes: int) -> FilterInfo:
    return replace(INFO, generations=(replace(NEWEST, **changes),))


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (INFO, OPENED + 20 * DAY),
        (with_newest(count=250), OPENED + 40 * DAY),
        (with_newest(count=1000), INFO.now),
        (with_newest(count=1200), INFO.now),
        (with_newest(count=0), None),
        (with_newest(opened=INFO.now), None),
        (with_newest(count=1, capacity=10**9), None),
    ],
)
def test_forecast_goes_on_as_before(info: FilterInfo, expected: int | None) -> None:
    assert fits_until(info) == expected


def test_every_text_is_escaped_and_nothing_is_loaded() -> None:
    worker = WorkerRow(HOSTILE, HOSTILE, "alive", 1)
    info = replace(INFO, key=HOSTILE, window=HOSTILE)
    html = page(HOSTILE, [Panel(HOSTILE, HOSTILE, info, None, ClaimTally(workers=[worker]))])
    for loaded in ("<script", "<link", "<img", "<iframe", "<object", "url(", "http"):
        assert loaded not in html
    texts, attributes = list[str](), list[str | None]()

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            texts.append(data)

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            attributes.extend(value for name, value in attrs if name == "data-key")

    Reader().feed(html)
    assert sum(HOSTILE in text for text in texts) == 7
    assert attributes == [HOSTILE]


def test_a_generation_collects_until_the_next_is_opened() -> None:
    """A window in runs has no dates of closing."""
    newest = replace(NEWEST, opened=OPENED + 5 * DAY, closes=0, forgotten=0)
    oldest = replace(NEWEST, closes=0, forgotten=0)
    html = page("here", [Panel("default", "k", replace(INFO, generations=(newest, oldest)))])
    bars = re.findall(r'<rect class="open" x="([\d.]+)" width="([\d.]+)" height="10"', html)
    (new_x, _), (old_x, old_width) = bars
    assert float(old_x) == 0
    assert float(old_width) == float(new_x) > 100
