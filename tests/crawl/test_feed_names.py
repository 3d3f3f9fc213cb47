"""Names of feeds that cost items of earlier runs, in real crawls."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.odd_site import LabOf, page


@pytest.mark.parametrize(
    ("options", "effect"),
    [
        ({"format": "csv"}, "adds to the last run's file, with another line of headers"),
        ({"format": "jsonlines", "overwrite": True}, "replaces the last run's file"),
        ({"format": "jsonlines"}, ""),
    ],
)
def test_a_fixed_name_of_a_feed_is_warned_of_from_the_second_run_on(
    lab_of: LabOf, tmp_path: Path, options: dict[str, Any], effect: str
) -> None:
    lab = lab_of({"/": page("/a"), "/a": page()})
    feeds = {str(tmp_path / "items"): options}
    logs = [lab.crawl(FEEDS=json.dumps(feeds)).log for _ in range(2)]
    assert [log.count("[bloom-feed-name]") for log in logs] == [0, int(bool(effect))]
    assert effect in logs[1]
    feeds = {str(tmp_path / "others"): options}
    assert "[bloom-feed-name]" not in lab.crawl(FEEDS=json.dumps(feeds)).log


def test_a_name_with_the_time_is_not_warned_of(lab_of: LabOf, tmp_path: Path) -> None:
    lab = lab_of({"/": page("/a"), "/a": page()})
    feeds = {str(tmp_path / "%(time)s.json"): {"format": "json"}, "stdout:": {"format": "csv"}}
    assert all("feed-name" not in lab.crawl(FEEDS=json.dumps(feeds)).log for _ in range(2))
