"""Errors for a cluster of which nodes failed: they carry what the other nodes replied. No I/O."""

from collections.abc import Mapping, Sequence
from typing import Any

import redis

from scrapy_bloom.bloom.client.cluster_routes import SLOTS, Failure, Topology, unusable_slots
from scrapy_bloom.bloom.errors import NotReadyError, StorageError, explain, showable
from scrapy_bloom.bloom.protocol.scripts import Call, Reply


def explain_failure(failure: Failure, label: str, words: Mapping[str, str]) -> StorageError:
    """Return an error that names the node of a cluster, and says what to do."""
    error = explain(failure.error, f"the node {failure.address} of {label}", words)
    error.__cause__ = showable(failure.error)
    return error


def failure_of_calls(
    calls: Sequence[Call],
    results: Sequence[Any],
    topology: Topology,
    label: str,
    words: Mapping[str, str],
) -> StorageError | None:
    """Return the error for calls of which some failed; None if none did.

    Args:
        calls: the calls.
        results: replies, or ``Failure`` in their places.
        topology: which node has which slot.
        label: as of ``errors.explain``.
        words: as of ``errors.explain``.

    Raises:
        StorageError: a reply is not a script's.
    """
    first = next((result for result in results if isinstance(result, Failure)), None)
    if first is None:
        return None
    error = explain_failure(first, label, words)
    is_whole = all(isinstance(result, Failure) for result in results)
    if isinstance(first.error, redis.ConnectionError | OSError) and not is_whole:
        # The other nodes answer: a replica may take over, which opening a filter waits for.
        error = not_ready(error)
    error.slots = unusable_slots(topology, calls, results)
    error.replies = [
        None if isinstance(result, Failure) else Reply.parse(result) for result in results
    ]
    return error


def not_ready(error: StorageError) -> NotReadyError:
    """Return an error of the same text after which opening a filter waits and tries again."""
    other = NotReadyError(str(error))
    other.__cause__ = error.__cause__
    return other


def failure_of_nodes(
    results: Sequence[Any], topology: Topology, label: str, words: Mapping[str, str]
) -> StorageError | None:
    """Return the error for a command to all nodes that failed on some; None if it did on none."""
    failures = [result for result in results if isinstance(result, Failure)]
    if not failures:
        return None
    error = explain_failure(failures[0], label, words)
    slots = topology.slots_of({failure.address for failure in failures})
    error.slots = slots if len(slots) < SLOTS else frozenset()
    return error


def refuse_nodes(
    results: Sequence[Any], topology: Topology, label: str, words: Mapping[str, str]
) -> None:
    """Refuse results of a command to all nodes that failed on some.

    Raises:
        StorageError: that of ``failure_of_nodes``.
    """
    error = failure_of_nodes(results, topology, label, words)
    if error is not None:
        raise error
