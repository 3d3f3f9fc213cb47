"""A ring as the JSON text that Redis holds, and back, trusting nothing."""

import json
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from scrapy_bloom.bloom.errors import ConfigurationError
from scrapy_bloom.bloom.model.generations import (
    MAX_FURTHER_LAYERS,
    MAX_LAYERS,
    Config,
    Generation,
    Layer,
)
from scrapy_bloom.bloom.model.header import Header, check, in_range, stored_int
from scrapy_bloom.bloom.model.ring import RUNS_KEPT, Ring
from scrapy_bloom.bloom.model.schedule import MAX_GENERATIONS, MAX_TIME, Schedule, parse_span
from scrapy_bloom.bloom.model.sizing import MAX_LAYER_BITS, MIN_ERROR_RATE, max_bits

#: Counts of URLs and of generations at most.
MANY = 1 << 62
#: Characters of a ring at most. The largest that can be made has about 72,000.
MAX_LENGTH = 256 << 10
#: Growth factors at most.
MAX_GROWTH = 64


def dump(ring: Ring) -> str:
    """Write a ring down, with a full copy of the header."""
    config = ring.config
    state = {
        "header": ring.header.to_fields(),
        "config": {
            "capacity": config.capacity,
            "error_rate": config.error_rate,
            "window": config.window,
            "period": config.period,
            "growth": config.growth,
            "max_memory": config.max_memory,
        },
        "block": ring.block,
        "generations": [_fields(generation) for generation in ring.generations],
        "since": ring.since,
        "run": ring.run,
        "runs": ring.runs,
        "changed": ring.changed,
    }
    return json.dumps(state, separators=(",", ":"))


def parse(text: str) -> Ring:
    """Read a ring back.

    Raises:
        ValueError: it is damaged, or of another format.
    """
    check(len(text) <= MAX_LENGTH, "number of characters", len(text))
    try:
        state = json.loads(text)
        header = _header(*state["header"].items())
        config = _config(state["config"])
        counting = header.counting
        generations = tuple(_generation(value, counting) for value in state["generations"])
        most = max((generation.run for generation in generations), default=0)
        block = stored_int(state, "block", 0, header.blocks - 1)
        run, runs = stored_int(state, "run", most, MANY), state["runs"]
        since = stored_int(state, "since", 0, MANY)
        changed = stored_int(state, "changed", 0, MAX_TIME)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is damaged ({error!r:.80})") from None
    check(1 <= len(generations) <= MAX_GENERATIONS, "generations", len(generations))
    layers = sum(len(generation.layers) for generation in generations)
    check(layers <= len(generations) + MAX_FURTHER_LAYERS, "layers", layers)
    numbers = [generation.number for generation in generations]
    check(numbers == sorted(set(numbers), reverse=True), "numbers of generations", numbers)
    check(isinstance(runs, list) and len(runs) <= RUNS_KEPT, "runs", runs)
    check(all(isinstance(name, str) for name in runs), "runs", runs)
    return Ring(header, config, block, generations, since, run, tuple(runs), changed)


@lru_cache(maxsize=64)
def _header(*fields: tuple[str, str]) -> Header:
    """Read a header, which is the same in all blocks of a filter."""
    return Header.from_fields(dict(fields))


def _config(value: dict[str, Any]) -> Config:
    capacity, error_rate = stored_int(value, "capacity", 1, MANY), value["error_rate"]
    growth, max_memory = value["growth"], value["max_memory"]
    good_rate = isinstance(error_rate, float) and MIN_ERROR_RATE <= error_rate < 1
    check(good_rate, "error_rate", error_rate)
    good_growth = type(growth) in (int, float) and (growth == 0 or 1 <= growth <= MAX_GROWTH)
    check(good_growth, "growth", growth)
    check(max_memory is None or in_range(max_memory, 1, MANY), "max_memory", max_memory)
    schedule = _schedule(value["window"], value["period"])
    return Config(capacity, error_rate, schedule, growth, max_memory)


@lru_cache(maxsize=64, typed=True)
def _schedule(window: Any, period: Any) -> Schedule | None:
    if window is None:
        return None
    try:
        return Schedule.of(parse_span("window", window), parse_span("period", period))
    except ConfigurationError as error:
        raise ValueError(f"it is damaged ({error})") from None


def _fields(generation: Generation) -> dict[str, Any]:
    fields = asdict(generation)
    for layer in fields["layers"]:
        del layer["counting"]  # the header says so
    return fields


def _generation(value: dict[str, Any], counting: bool) -> Generation:
    own = stored_int(value, "number", 0, MANY)
    layers = tuple(_layer(layer, own, counting) for layer in value["layers"])
    indexes = [layer.index for layer in layers]
    check(layers and indexes == sorted(set(indexes)), "indexes of layers", indexes)
    opened, dated = (stored_int(value, name, 0, MAX_TIME) for name in ("opened", "dated"))
    return Generation(own, opened, dated, stored_int(value, "run", 0, MANY), layers)


def _layer(value: dict[str, Any], generation: int, counting: bool) -> Layer:
    return Layer(
        stored_int(value, "generation", generation, generation),
        stored_int(value, "index", 0, MAX_LAYERS - 1),
        stored_int(value, "num_bits", 1, max_bits(MAX_LAYER_BITS, counting=counting)),
        stored_int(value, "capacity", 1, MANY),
        counting,
    )
