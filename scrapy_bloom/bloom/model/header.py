"""What all blocks of a filter share for its whole life."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scrapy_bloom.bloom.errors import shown
from scrapy_bloom.bloom.model.hashing import MAX_SEED
from scrapy_bloom.bloom.model.sizing import MAX_BLOCKS, MAX_HASHES

#: Version of everything stored: header, rings, layers, and which bits of them an item sets.
FORMAT = 3
#: Orders of a ring: which generations are written, and which are tested.
WRITE_NEWEST, WRITE_ALL = "write-newest", "write-all"


@dataclass(frozen=True, slots=True)
class Header:
    """What all blocks of a filter share and what never changes.

    Args:
        id: random name of this filter; a ring that carries another id is not ours.
        blocks: number of blocks.
        seeds: MurmurHash3 seeds, one per bit that a URL sets.
        fingerprinter: import path of the class that made the fingerprints, "" if unknown.
        order: ``write-newest`` writes the active generation and tests all; ``write-all`` writes all
            and tests the oldest.
        stagger: whether the blocks rotate one after the other, spread over the period.
        counting: whether layers hold counters instead of bits, so that URLs can be discarded.
    """

    id: str
    blocks: int
    seeds: tuple[int, ...] = field(repr=False)  # secret
    fingerprinter: str = ""
    order: str = WRITE_NEWEST
    stagger: bool = False
    counting: bool = False

    def to_fields(self) -> dict[str, str]:
        """Return the fields of the header's Redis HASH."""
        return {
            "id": self.id,
            "format": str(FORMAT),
            "blocks": str(self.blocks),
            "seeds": json.dumps(self.seeds),
            "fingerprinter": self.fingerprinter,
            "order": self.order,
            "stagger": str(int(self.stagger)),
            "counting": str(int(self.counting)),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, str]) -> "Header":
        """Read a header back, trusting nothing.

        Raises:
            ValueError: it is damaged, or of a format this version does not know.
        """
        version = fields.get("format")
        if version != str(FORMAT):
            raise ValueError(f"its format is {version!r:.40}, and this version reads {FORMAT}")
        name, fingerprinter = fields.get("id"), fields.get("fingerprinter", "")
        check(isinstance(name, str) and re.fullmatch(r"[0-9a-f]{32}", name), "id", name)
        check(is_text(fingerprinter), "fingerprinter", fingerprinter)
        order = _one_of("order", fields.get("order"), (WRITE_NEWEST, WRITE_ALL))
        counting = _one_of("counting", fields.get("counting"), ("0", "1")) == "1"
        check(not (counting and order == WRITE_ALL), "order of a counting filter", order)
        return cls(
            id=str(name),
            blocks=parse_blocks(fields.get("blocks")),
            seeds=_seeds(fields.get("seeds", "null")),
            fingerprinter=fingerprinter,
            order=order,
            stagger=_one_of("stagger", fields.get("stagger"), ("0", "1")) == "1",
            counting=counting,
        )


def check(good: Any, name: str, value: Any) -> None:
    """Raise ValueError unless a stored value is good."""
    if not good:
        raise ValueError(f"it is damaged ({name} = {shown(value, 60)})")


def in_range(value: Any, low: int, high: int) -> bool:
    """Whether a stored value is an int, and within bounds."""
    return type(value) is int and low <= value <= high


def stored_int(stored: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """Return a stored int.

    Raises:
        ValueError: it is none, or out of bounds.
    """
    value = stored[name]
    check(in_range(value, low, high), name, value)
    return int(value)


def is_text(value: Any) -> bool:
    """Whether a value is a text that UTF-8 has: no half of a pair of surrogates."""
    return isinstance(value, str) and not re.search("[\ud800-\udfff]", value)


def parse_blocks(text: Any) -> int:
    """Return a stored number of blocks.

    Raises:
        ValueError: it is damaged.
    """
    good = isinstance(text, str) and re.fullmatch(r"[0-9]{1,9}", text)
    check(good and 1 <= int(text) <= MAX_BLOCKS, "blocks", text)
    return int(text)


def _seeds(text: str) -> tuple[int, ...]:
    try:
        value = json.loads(text)
    except RecursionError:
        value = None
    count = len(value) if isinstance(value, list) else 0
    check(1 <= count <= MAX_HASHES, "number of seeds", count)
    for number, seed in enumerate(value):  # their values are secret
        check(in_range(seed, 0, MAX_SEED), "type or range of seed number", number)
    check(len(set(value)) == count, "number of different seeds", len(set(value)))
    return tuple(value)


def _one_of(name: str, value: Any, choices: tuple[str, ...]) -> str:
    check(value in choices, name, value)
    return str(value)
