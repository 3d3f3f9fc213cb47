"""Schedules: the same number, the same faults."""

import pytest

from chaos import faults
from chaos.failovers import INFLICT
from chaos.schedule import BEGIN_WITHIN, FAULTS, MIXED, PAUSE, SINGLE, Schedule, kinds_on
from chaos.stands import STANDS

EACH = [(stand, kind) for stand in STANDS for kind in kinds_on(stand)]


@pytest.mark.parametrize(("stand", "kind"), EACH)
def test_a_schedule_is_repeated_by_its_number_and_is_one_fault_at_a_time(
    stand: str, kind: str
) -> None:
    schedules = [Schedule.random(kind, seed, stand) for seed in range(100)]
    assert schedules == [Schedule.random(kind, seed, stand) for seed in range(100)]
    assert len({schedule.events for schedule in schedules}) == 100
    for schedule in schedules:
        assert 0 <= schedule.events[0].at <= BEGIN_WITHIN
        for event, following in zip(schedule.events, schedule.events[1:], strict=False):
            assert following.at >= event.at + event.lasts + PAUSE / 2
        assert all(stand in FAULTS[event.fault].stands for event in schedule.events)


def test_every_fault_can_be_inflicted() -> None:
    assert set(INFLICT) == set(FAULTS)
    assert {*faults.INFLICT, MIXED} == set(kinds_on(SINGLE))
