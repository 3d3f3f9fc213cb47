"""The bound on what is fetched again: what each fault may cost, and no more."""

import pytest

from chaos import witness
from chaos.outcome import CRAWLERS, PER_KEY, PER_KILL, Outcome
from chaos.schedule import CLUSTER, SENTINEL
from chaos.site import Tally

LASTING = 100
#: Pages that all crawlers crawl again after a restart of the server.
REPEATED = CRAWLERS * PER_KILL


def outcome(*struck: str, **counts: int | list[int]) -> Outcome:
    return Outcome("any", 1, "any", "crawled", list(struck), lasting=LASTING, **counts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trial", "most", "forgotten"),
    [
        (outcome("script_flush"), 0, 0),
        (outcome("stall", unasked=7), 7, 0),
        (outcome("stall", unasked=7, undone=3), 10, 0),
        (outcome("stall", unasked=10_000), CRAWLERS * LASTING, 0),
        (outcome("flushall", "flushall"), 2 * LASTING, 2 * LASTING),
        (outcome("server_kill", unasked=7), LASTING + REPEATED + 7, LASTING),
        (outcome("server_kill_aof", "server_kill_aof", unasked=7), 2 * REPEATED + 7, 0),
        (outcome("evict", evicted=3, new=1_000), 3 * PER_KEY, 3 * PER_KEY),
        (outcome("evict", evicted=1_000, new=300), 300, 300),
        (outcome("crawler_kill", "crawler_kill", killed=[90, 2]), PER_KILL + 2, 0),
        (outcome("stall", "crawler_kill", killed=[90, 2], unasked=7), 99, 0),
        # Each may forget all that was not replicated, and all crawl again what they had under way.
        (outcome("failover", promotions=1), LASTING + REPEATED, LASTING),
    ],
)
def test_what_faults_may_cost(trial: Outcome, most: int, forgotten: int) -> None:
    assert (trial.most, trial.forgotten) == (most, forgotten)


@pytest.mark.parametrize(
    ("twice", "alone", "failed"), [(7, 0, False), (8, 0, True), (7, 1, True), (0, 0, False)]
)
def test_a_trial_that_fetches_too_much_has_failed(twice: int, alone: int, failed: bool) -> None:
    trial = outcome("stall", unasked=7, alone=alone)
    trial.quiet, trial.again = True, {"/": twice}
    assert trial.failed is failed


def test_what_is_taken_over_from_crawlers_that_live_may_be_fetched_twice() -> None:
    assert outcome("failover", taken_over=5).most == 5
    assert outcome("stall", taken_over=5, unasked=2).most_alone == 7
    assert outcome("crawler_kill", taken_over=90, killed=[90]).most == PER_KILL


@pytest.mark.parametrize(
    ("stand", "promotions", "killed", "failed"),
    [
        (CLUSTER, 1, [1, 2], False),
        (CLUSTER, 1, [1], True),  # the other one lives, and has the page in its queue
        (CLUSTER, 0, [1, 2], True),  # no claim was lost
        (SENTINEL, 1, [1, 2], True),  # a replica has all that came before what it has
    ],
)
def test_pages_may_be_hidden_only_on_a_cluster_with_the_processes_that_had_them(
    stand: str, promotions: int, killed: list[int], failed: bool
) -> None:
    tally = Tally(testimony=witness.Testimony(held={"/": {1, 2}}))
    trial = outcome("failover", promotions=promotions)
    trial.quiet, trial.stand = True, stand
    trial.judge_hidden(tally, ["/"], killed)
    assert trial.failed is failed
    assert trial.hidden == ["/"]


def test_a_page_of_ones_own_is_fetched_again_if_its_claim_was_somebody_elses() -> None:
    assert outcome("stall", unasked=7).most_alone == 0
    assert outcome("stall", unasked=7, closed=1).most_alone == 7
    assert outcome("stall", unasked=7, undone=1).most_alone == 7
    assert outcome("stall", "crawler_kill", unasked=7, killed=[90]).most_alone == 7
    assert outcome("flushall").most_alone == LASTING
    assert outcome("server_kill_aof").most_alone == REPEATED


def test_keys_that_do_not_expire_are_a_failure() -> None:
    trial = outcome("stall")
    trial.quiet = True
    assert not trial.failed
    trial.endless = ["key"]
    assert trial.failed
