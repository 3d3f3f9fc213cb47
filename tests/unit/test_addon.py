"""The add-on: what it sets, what it leaves alone, and what it says when it has no effect."""

import pytest
from scrapy.settings import Settings
from scrapy.utils.misc import load_object

from scrapy_bloom import Addon, BloomDupeFilter


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
    assert f"DUPEFILTER_CLASS = '{other}' is set, too. Remove that line" in caplog.text
    assert "Remove that line" in caplog.text


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
