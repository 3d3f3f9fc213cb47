"""A block's ring as a pure value: what is in it, and how it is written down.

Redis holds one ring per block under compare-and-set (``lua/swap.lua``). Everything that decides
about a ring is here and does no I/O.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from scrapy_bloom.hashing import MAX_SEED, SCHEME
from scrapy_bloom.sizing import MAX_BLOCKS, MAX_HASHES, MAX_LAYER_BITS, layer_bytes, plan

#: Version of everything stored: header, rings, layers.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Header:
    """What all blocks of a filter share and what never changes.

    Args:
        id: random name of this filter; a ring that carries another id is not ours.
        blocks: number of blocks.
        seeds: MurmurHash3 seeds, one per bit that a URL sets.
        fingerprinter: import path of the class that made the fingerprints, "" if unknown.
        scheme: name of the hash scheme.
        format: version of the stored data.
    """

    id: str
    blocks: int
    seeds: tuple[int, ...] = field(repr=False)  # secret
    fingerprinter: str = ""
    scheme: str = SCHEME
    format: int = FORMAT

    def to_fields(self) -> dict[str, str]:
        """Return the fields of the header's Redis HASH."""
        return {
            "id": self.id,
            "format": str(self.format),
            "blocks": str(self.blocks),
            "seeds": json.dumps(self.seeds),
            "scheme": self.scheme,
            "fingerprinter": self.fingerprinter,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> "Header":
        """Read a header back, trusting nothing.

        Raises:
            ValueError: it is damaged, or of a format or hash scheme this version does not know.
        """
        version = fields.get("format")
        if version != str(FORMAT):
            raise ValueError(f"its format is {version!r:.40}, and this version reads {FORMAT}")
        if fields.get("scheme") != SCHEME:
            raise ValueError(
                f"its hash scheme is {fields.get('scheme')!r:.40}, this version knows {SCHEME!r}"
            )
        seeds = json.loads(fields.get("seeds", "null"))
        return cls._checked(
            id=fields.get("id"),
            blocks=_whole(fields.get("blocks")),
            seeds=seeds,
            fingerprinter=fields.get("fingerprinter", ""),
        )

    @classmethod
    def _checked(cls, id: Any, blocks: Any, seeds: Any, fingerprinter: Any) -> "Header":  # noqa: A002
        _check(isinstance(id, str) and re.fullmatch(r"[0-9a-f]{32}", id), "id", id)
        _check(_in_range(blocks, 1, MAX_BLOCKS), "blocks", blocks)
        count = len(seeds) if isinstance(seeds, list) else 0
        _check(1 <= count <= MAX_HASHES, "number of seeds", count)
        for number, seed in enumerate(seeds):  # their values are secret
            _check(_in_range(seed, 0, MAX_SEED), "type or range of seed number", number)
        _check(len(set(seeds)) == count, "number of different seeds", len(set(seeds)))
        _check(isinstance(fingerprinter, str), "fingerprinter", fingerprinter)
        return cls(id, blocks, tuple(seeds), fingerprinter)


@dataclass(frozen=True, slots=True)
class Config:
    """What may change during a filter's life.

    Args:
        capacity: URLs a generation of the whole filter takes.
        error_rate: bound on the filter's false-positive rate, 0 < p < 1.
    """

    capacity: int
    error_rate: float


@dataclass(frozen=True, slots=True)
class Layer:
    """One bitmap of a block.

    Args:
        generation: number of the generation it belongs to.
        index: its place among the generation's layers.
        num_bits: its size in bits.
        capacity: URLs it takes.
    """

    generation: int
    index: int
    num_bits: int
    capacity: int

    @property
    def name(self) -> str:
        """The last part of its Redis key, ``<generation>.<index>``."""
        return f"{self.generation}.{self.index}"

    @property
    def memory(self) -> int:
        """Bytes of its bitmap."""
        return layer_bytes(self.num_bits)


@dataclass(frozen=True, slots=True)
class Generation:
    """The layers that collect URLs during one rotation period.

    Args:
        number: counts up through the life of a block; never used twice.
        opened: Unix time in seconds on the server's clock.
        layers: oldest first; the last one is written.
    """

    number: int
    opened: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Ring:
    """A block's live generations, newest first; the newest is active."""

    header: Header
    config: Config
    generations: tuple[Generation, ...]

    @classmethod
    def fresh(cls, header: Header, config: Config, now: int, number: int = 0) -> "Ring":
        """Return a ring of one empty generation.

        Raises:
            ConfigurationError: a layer would pass the 512 MiB of a Redis string.
        """
        sized = plan(
            config.capacity,
            config.error_rate,
            blocks=header.blocks,
            num_hashes=len(header.seeds),
        )
        layer = Layer(number, 0, sized.num_bits, sized.block_capacity)
        return cls(header, config, (Generation(number, now, (layer,)),))

    @property
    def active(self) -> Layer:
        """The layer that new URLs are written to."""
        return self.generations[0].layers[-1]

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers, the active generation's first."""
        return tuple(layer for generation in self.generations for layer in generation.layers)

    def cleared(self, now: int, config: Config | None = None) -> "Ring":
        """Return the empty ring that follows this one, under a new generation number."""
        return Ring.fresh(self.header, config or self.config, now, self.generations[0].number + 1)

    def to_json(self) -> str:
        """Write the ring down, with a full copy of the header."""
        state = asdict(self)
        state["header"] = self.header.to_fields()
        return json.dumps(state, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Ring":
        """Read a ring back, trusting nothing.

        Raises:
            ValueError: it is damaged, or of another format.
        """
        try:
            state = json.loads(text)
            header = Header.from_fields(state["header"])
            config = Config(**state["config"])
            generations = tuple(_generation(value) for value in state["generations"])
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is damaged ({error!r:.80})") from None
        _check(_in_range(config.capacity, 1, 1 << 62), "capacity", config.capacity)
        rate = config.error_rate
        _check(isinstance(rate, float) and 0 < rate < 1, "error_rate", rate)
        _check(generations, "generations", generations)
        return cls(header, config, generations)


def _generation(value: dict[str, Any]) -> Generation:
    layers = tuple(Layer(**layer) for layer in value["layers"])
    _check(layers, "layers", layers)
    for layer in layers:
        _check(layer.generation == value["number"], "generation", layer.generation)
        _check(_in_range(layer.index, 0, 64), "index", layer.index)
        _check(_in_range(layer.num_bits, 1, MAX_LAYER_BITS), "num_bits", layer.num_bits)
        _check(_in_range(layer.capacity, 1, 1 << 62), "capacity", layer.capacity)
    _check(_in_range(value["number"], 0, 1 << 62), "number", value["number"])
    _check(_in_range(value["opened"], 0, 1 << 62), "opened", value["opened"])
    return Generation(value["number"], value["opened"], layers)


def _check(good: Any, name: str, value: Any) -> None:
    if not good:
        raise ValueError(f"it is damaged ({name} = {value!r:.60})")


def _in_range(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
