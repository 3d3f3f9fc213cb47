"""Which calls a cluster's nodes get, and get again: replies are played, nothing is sent."""

from typing import Any

import pytest
import redis
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, NoScriptError, TryAgainError

from scrapy_bloom.bloom.client.driver import Driver
from scrapy_bloom.bloom.client.routes import (
    MAX_WAVES,
    ONE_SERVER,
    PAUSE_SECONDS,
    SERVER,
    Address,
    Failure,
    Topology,
    Wave,
    dispatch,
)
from scrapy_bloom.bloom.errors import NotReadyError
from scrapy_bloom.bloom.protocol.scripts import Call, load

ONE, TWO, NEW = Address("one", 1), Address("two", 2), Address("new", 3)
#: Reply to CLUSTER SLOTS, as bytes and as text: all slots up to 8,191 are on ONE, NEW is a replica.
HALVES = [
    [0, 8_191, [b"one", 1, b"id"], [b"new", 3, b"id"]],
    [8_192, 16_383, ["two", 2, "id"]],
]
SCRIPT = load("read")


def call_on(owner: Address) -> Call:
    """Return a call whose key is on a node."""
    for number in range(100):
        key = f"{{k:{number}}}"
        if (key_slot(key.encode()) < 8_192) == (owner == ONE):
            return Call(SCRIPT, (key,), ())
    raise AssertionError


def play(waves: Any, *answers: dict[Address, list[Any]]) -> tuple[Any, list[Wave]]:
    """Give a dispatch the answers to its waves; return its result and the waves."""
    seen = []
    try:
        wave = next(waves)
        for answer in answers:
            seen.append(wave)
            lengths = {address: len(commands) for address, commands in wave.batches.items()}
            assert lengths == {address: len(replies) for address, replies in answer.items()}
            wave = waves.send(answer)
    except StopIteration as stop:
        return stop.value, seen
    raise AssertionError(f"one more wave: {wave}")


def known() -> Topology:
    topology = Topology([ONE], lambda host, port: (host, port))
    assert topology.learn(HALVES, ONE)
    return topology


def test_a_filter_can_be_opened_later_where_other_nodes_answer() -> None:
    """A replica may take over. If no node answers, there may be no cluster at this address."""
    gone = redis.ConnectionError("Error 111 connecting to two:2. Connection refused.")
    calls = [call_on(TWO), call_on(ONE)]
    driver = Driver(redis.Redis(), "the cluster")
    driver.topology = known()
    for other, is_to_be_ready in ((["ok", "", "", 0], True), (Failure(gone, ONE), False)):
        error = driver.failure_of_calls(calls, [Failure(gone, TWO), other])
        assert isinstance(error, NotReadyError) is is_to_be_ready
        assert "the node two:2 of the cluster is not there" in str(error)


def names(wave: Wave, address: Address) -> list[Any]:
    """Return the first words of the commands that a node gets."""
    return [command.words[0] for command in wave.batches[address]]


def test_calls_are_grouped_by_node_and_answered_in_their_order() -> None:
    calls = [call_on(TWO), call_on(ONE), call_on(TWO)]
    replies, (wave,) = play(dispatch(known(), calls), {TWO: ["a", "b"], ONE: ["c"]})
    assert replies == ["a", "c", "b"]
    assert names(wave, ONE) == ["EVALSHA"]


def test_a_node_without_a_name_has_the_one_it_was_reached_by() -> None:
    topology = known()
    for host in (b"", "", None):
        topology.learn([[0, 16_383, [host, 7, b"id"]]], TWO)
        assert topology.primaries() == [("two", 7)]


def test_a_server_that_is_no_cluster_is_its_primary() -> None:
    """It is asked for its run_id: else no restart would be noticed."""
    assert ONE_SERVER.primaries() == [SERVER]


def test_moved_is_followed_and_the_new_owner_asked_for_all_slots() -> None:
    topology, call = known(), call_on(ONE)
    slot = key_slot(call.keys[0].encode())
    moved = MovedError(f"{slot} new:3")
    replies, waves = play(
        dispatch(topology, [call, call_on(TWO)]),
        {ONE: [moved], TWO: ["kept"]},
        {NEW: ["done", [[0, 16_383, [b"new", 3, b"id"]]]]},
    )
    assert replies == ["done", "kept"]
    assert names(waves[1], NEW) == ["EVALSHA", "CLUSTER"]
    assert topology.primaries() == [NEW]


def test_ask_is_for_one_command_on_the_same_connection() -> None:
    topology, call = known(), call_on(ONE)
    slot = key_slot(call.keys[0].encode())
    replies, waves = play(
        dispatch(topology, [call]),
        {ONE: [AskError(f"{slot} new:3")]},
        {NEW: [b"OK", NoScriptError("")]},
        {NEW: [b"OK", "done"]},
    )
    assert replies == ["done"]
    assert names(waves[1], NEW) == ["ASKING", "EVALSHA"]
    assert names(waves[2], NEW) == ["ASKING", "EVAL"]
    assert topology.owner(call) == ONE


def test_tryagain_goes_back_to_the_owner_after_a_pause() -> None:
    topology, call = known(), call_on(ONE)
    slot = key_slot(call.keys[0].encode())
    replies, waves = play(
        dispatch(topology, [call]),
        {ONE: [AskError(f"{slot} new:3")]},
        {NEW: [b"OK", TryAgainError("")]},
        {ONE: ["done"]},
    )
    assert replies == ["done"]
    assert [wave.pause > 0 for wave in waves] == [False, False, True]


def test_a_cluster_that_is_down_is_waited_for_and_its_nodes_are_read_again() -> None:
    replies, waves = play(
        dispatch(known(), [call_on(ONE), call_on(TWO)]),
        {ONE: [ClusterDownError("")], TWO: ["a"]},
        {ONE: [ClusterDownError(""), [[0, 16_383, [b"new", 3, b"id"]]]]},
        {NEW: ["b"]},
    )
    assert replies == ["b", "a"]
    assert [wave.pause > 0 for wave in waves] == [False, True, True]


def test_a_cluster_is_not_waited_for_where_a_node_has_failed() -> None:
    lost, down = redis.ConnectionError(""), ClusterDownError("")
    replies, _ = play(dispatch(known(), [call_on(ONE), call_on(TWO)]), {ONE: [lost], TWO: [down]})
    assert replies == [Failure(lost, ONE), Failure(down, TWO)]


def test_the_pauses_end() -> None:
    error = ClusterDownError("")
    answers = [{ONE: [error, HALVES][:number]} for number in (1, 2, 1)]
    patience = 2 * PAUSE_SECONDS
    replies, waves = play(dispatch(known(), [call_on(ONE)], patience=patience), *answers)
    assert replies == [Failure(error, ONE)]
    assert sum(wave.pause for wave in waves) == patience


def test_a_script_is_sent_as_text_once_for_each_node() -> None:
    missing = NoScriptError("")
    calls = [call_on(ONE), call_on(ONE), call_on(TWO)]
    _, waves = play(
        dispatch(known(), calls),
        {ONE: [missing, missing], TWO: [missing]},
        {ONE: ["a", "b"], TWO: ["c"]},
    )
    assert names(waves[1], ONE) == ["EVAL", "EVALSHA"]
    assert names(waves[1], TWO) == ["EVAL"]


@pytest.mark.parametrize("error", [redis.TimeoutError(""), redis.ResponseError("OOM")])
def test_nothing_else_is_sent_again(error: Exception) -> None:
    topology = known()
    replies, _ = play(dispatch(topology, [call_on(ONE), call_on(TWO)]), {ONE: [error], TWO: ["a"]})
    assert replies == [Failure(error, ONE), "a"]
    assert topology.is_stale == (str(error) != "OOM")


def test_nodes_that_disagree_end() -> None:
    call = call_on(ONE)
    slot = key_slot(call.keys[0].encode())
    answers: list[dict[Address, list[Any]]] = [{ONE: [MovedError(f"{slot} two:2")]}]
    for number in range(1, MAX_WAVES):
        here, there = (TWO, "one:1") if number % 2 else (ONE, "two:2")
        answers.append({here: [MovedError(f"{slot} {there}"), HALVES]})
    replies, waves = play(dispatch(known(), [call]), *answers)
    assert isinstance(replies[0].error, MovedError)
    assert len(waves) == MAX_WAVES


def test_the_nodes_are_read_again_from_one_that_has_not_failed() -> None:
    topology, call = known(), call_on(ONE)
    lost = redis.ConnectionError("")
    play(dispatch(topology, [call]), {ONE: [lost]})
    # ONE is asked last; its replica has taken over.
    replies, _ = play(
        dispatch(topology, [call]),
        {NEW: [[[0, 8_191, [b"new", 3, b"id"]], HALVES[1]]]},
        {NEW: ["done"]},
    )
    assert replies == ["done"]


def test_no_node_that_answers_is_an_error() -> None:
    topology = Topology([ONE, TWO], lambda host, port: (host, port))
    with pytest.raises(redis.ConnectionError, match="last"):
        play(
            dispatch(topology, [call_on(ONE)]),
            {ONE: [redis.ConnectionError("first")]},
            {TWO: [redis.ConnectionError("last")]},
        )
    with pytest.raises(ClusterDownError):
        play(dispatch(topology, [call_on(ONE)]), {ONE: [[]]}, {TWO: [[]]})
