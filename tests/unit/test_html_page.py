"""The page of ``scrapy bloom report``, without a server."""

from dataclasses import replace
from html import escape
from typing import Any

import pytest
from support import infos

from scrapy_bloom.bloom.protocol.info import FilterInfo
from scrapy_bloom.bloom.protocol.ledger_info import LedgerInfo
from scrapy_bloom.cli.panel import SHOWN, Panel, WorkerRow
from scrapy_bloom.cli.report import fits_until, page

DAY = 86_400
OPENED = infos.NOW
NEWEST = replace(infos.GENERATION, count=500)
INFO = replace(infos.INFO, generations=(NEWEST,), now=OPENED + 10 * DAY)
#: 500 URLs came in 10 days, and there is room for 1,000 more.
LATER = INFO.now + 20 * DAY
HOSTILE = "</title></style><script>x</script>\"'&"


def with_newest(**changes: int) -> FilterInfo:
    return replace(INFO, generations=(replace(NEWEST, **changes),))


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (INFO, OPENED + 20 * DAY),
        (with_newest(count=1000), INFO.now),
        (with_newest(count=0), None),
        (with_newest(opened=INFO.now - DAY), INFO.now + DAY),
        # The newest generation is too young: the one before counts, too.
        (
            replace(INFO, generations=(replace(NEWEST, opened=INFO.now - 60, count=0), NEWEST)),
            LATER,
        ),
        (with_newest(count=1, capacity=10**9), None),
    ],
)
def test_forecast_goes_on_as_before(info: FilterInfo, expected: int | None) -> None:
    assert fits_until(info) == expected


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (INFO, "then it grows, at the same error rate"),
        (replace(INFO, growth=0), "then it forgets the oldest URLs early"),
        (replace(with_newest(closes=0), growth=0, window=None), "then it stops recording"),
        (with_newest(count=250), "has room until it rotates"),
        (with_newest(count=0), "no end in sight"),
        (with_newest(opened=INFO.now - 600), "not known yet"),
    ],
)
def test_page_says_what_happens_when_it_is_full(info: FilterInfo, text: str) -> None:
    assert text in page("here", [Panel("default", "k", info)])


def test_every_text_is_escaped_and_nothing_is_loaded() -> None:
    worker = WorkerRow(HOSTILE, HOSTILE, "alive", 1)
    info = replace(INFO, key=HOSTILE, window=HOSTILE)
    html = page(HOSTILE, [Panel(HOSTILE, HOSTILE, info, workers=[worker])])
    for loaded in ("<script", "<link", "<img", "<iframe", "<object", "url(", "http"):
        assert loaded not in html
    assert html.count(escape(HOSTILE)) == 10
    assert HOSTILE not in html
    assert f'data-key="{escape(HOSTILE)}"' in html


PAGES: list[dict[str, Any]] = [
    {"attempts": 2, "due": OPENED, "first": OPENED, "last": OPENED, "windows": 3}
    | {"reason": f"{HOSTILE}{number}", "url": f"https://example.com/{number}"}
    for number in range(SHOWN + 5)
]


@pytest.mark.parametrize(
    ("panel", "title", "command"),
    [
        (Panel("d", "k", INFO, failed=25, failed_pages=PAGES[:SHOWN]), "Failed pages", "failed"),
        (Panel("d", "k", INFO, gone_pages=PAGES), "Pages that are gone", "gone"),
    ],
)
def test_failed_and_gone_pages_are_listed(panel: Panel, title: str, command: str) -> None:
    html = page("here", [panel])
    assert f"<h3>{title}</h3>" in html
    assert html.count("https://example.com/") == 2 * SHOWN  # also as data-text
    assert f"the first of 25: <code>scrapy bloom {command}</code>" in html
    assert HOSTILE not in html
    assert title not in page("here", [Panel("default", "k", INFO)])


def test_the_ledger_is_shown_if_there_is_one() -> None:
    html = page("here", [Panel("default", "k", INFO, ledger=LedgerInfo(1_000, 7, 2048))])
    assert '<data class="ledger_pages" value="1000">about 1,000</data>' in html
    assert 'pages in 2.0 KiB; <data class="ledger_due" value="7">7</data> due' in html
    assert "Ledger" not in page("here", [Panel("default", "k", INFO)])
