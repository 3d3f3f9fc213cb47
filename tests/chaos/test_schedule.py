"""Schedules: the same number, the same faults."""

import pytest

from chaos.faults import INFLICT
from chaos.schedule import BEGIN_WITHIN, FAULTS, KINDS, MIXED, PAUSE, Schedule


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_is_repeated_by_its_number_and_is_one_fault_at_a_time(kind: str) -> None:
    schedules = [Schedule.random(kind, seed) for seed in range(100)]
    assert schedules == [Schedule.random(kind, seed) for seed in range(100)]
    assert len({schedule.events for schedule in schedules}) == 100
    for schedule in schedules:
        assert schedule.events
        assert 0 <= schedule.events[0].at <= BEGIN_WITHIN
        for event, following in zip(schedule.events, schedule.events[1:], strict=False):
            assert following.at >= event.at + event.lasts + PAUSE / 2
        for event in schedule.events:
            assert kind in (event.fault, MIXED)
            shortest, longest = FAULTS[event.fault].lasts
            assert shortest <= event.lasts <= longest
            assert 0 <= event.level <= 1


def test_every_fault_can_be_inflicted() -> None:
    assert set(INFLICT) == set(FAULTS)
