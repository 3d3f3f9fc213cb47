"""The add-on: what it sets, what it leaves alone, and what it says when it loses."""

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
def test_it_says_which_line_to_remove_where_it_loses(
    priority: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = "scrapy.dupefilters.RFPDupeFilter"
    assert after_addon(other, priority)["DUPEFILTER_CLASS"] == other
    assert f"DUPEFILTER_CLASS = '{other}' is set as well: remove that line" in caplog.text


def test_it_is_silent_where_the_user_set_the_same_and_in_scrapys_commands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for value in ("scrapy_bloom.BloomDupeFilter", BloomDupeFilter):
        assert after_addon(value, "project")["DUPEFILTER_CLASS"] == value
    base = "scrapy.dupefilters.BaseDupeFilter"
    assert after_addon(base, "command")["DUPEFILTER_CLASS"] == base
    assert not caplog.records
