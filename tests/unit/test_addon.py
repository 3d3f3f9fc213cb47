"""The add-on: what it sets, what it leaves alone, and what it says when it has no effect."""

from typing import Any

import pytest
from scrapy import Spider
from scrapy.dupefilters import RFPDupeFilter
from scrapy.settings import BaseSettings, Settings
from scrapy.utils.misc import load_object
from scrapy.utils.test import get_crawler

from scrapy_bloom import Addon, BloomDupeFilter


class Own(RFPDupeFilter):
    """The filter of another add-on."""


class Other:
    """An add-on that sets the same setting, with the same priority."""

    def update_settings(self, settings: BaseSettings) -> None:
        settings.set("DUPEFILTER_CLASS", Own, "addon")


def after_addon(value: object = None, priority: str = "project") -> Settings:
    settings = Settings()
    if value is not None:
        settings.set("DUPEFILTER_CLASS", value, priority)
    Addon().update_settings(settings)
    return settings


def test_it_sets_the_dupefilter() -> None:
    settings = after_addon()
    assert load_object(settings["DUPEFILTER_CLASS"]) is BloomDupeFilter
    assert settings.getpriority("DUPEFILTER_CLASS") == 15


@pytest.mark.parametrize("priority", ["project", "cmdline"])
def test_it_says_which_line_to_remove_where_it_has_no_effect(
    priority: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = "scrapy.dupefilters.RFPDupeFilter"
    assert after_addon(other, priority)["DUPEFILTER_CLASS"] == other
    assert f"because a line sets DUPEFILTER_CLASS = '{other}'. Remove that line" in caplog.text


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        ("scrapy_bloom.BloomDupeFilter", "project"),
        (BloomDupeFilter, "project"),
        ("scrapy.dupefilters.BaseDupeFilter", "command"),
    ],
)
def test_it_leaves_the_same_line_and_scrapys_commands_alone_in_silence(
    value: object, priority: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert after_addon(value, priority)["DUPEFILTER_CLASS"] == value
    assert not caplog.records


@pytest.mark.parametrize("addons", [(Addon, Other), (Other, Addon)])
def test_of_two_addons_the_other_one_decides_and_ours_says_so_if_it_is_the_last(
    addons: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """The first one isn't told what a later one sets; ``scrapy bloom doctor`` finds that, too."""
    crawler = get_crawler(Spider, {"ADDONS": dict.fromkeys(addons, 500)})
    assert crawler.settings["DUPEFILTER_CLASS"] is Own
    warning = f"another add-on sets DUPEFILTER_CLASS = {Own!r}. Remove one of both from ADDONS"
    assert (warning in caplog.text) is (addons[-1] is Addon)
