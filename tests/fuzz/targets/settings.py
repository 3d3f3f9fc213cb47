"""Settings: a crawl's options, as text of the command line and as values of any type.

A line is ``NAME=text``, as ``-s`` gives it, or ``NAME:JSON``. Texts in JSON that begin with ``!``
stand for other values: see ``ODD``.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any

from scrapy.settings import BaseSettings

from fuzz.mutate import json_text, lines, raw
from fuzz.target import SECRET, Target
from scrapy_bloom.bloom.errors import ConfigurationError, shown
from scrapy_bloom.bloom.model import ring_codec
from scrapy_bloom.bloom.model.header import Header
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.options import DEFAULTS, FilterOptions
from scrapy_bloom.settings import SETTINGS, BloomSettings

NOW = 1_700_000_000
#: Settings whose values no error shows.
SECRETS = {"BLOOM_REDIS_URL", "BLOOM_REDIS_PARAMS", "BLOOM_SEEDS"}


class _Mute:
    """Has no text."""

    def _fail(self) -> str:
        raise RuntimeError("broken value")

    __repr__ = __str__ = _fail


class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError("broken repr")


class _Index:
    def __index__(self) -> int:
        return 10**5_000


ODD: dict[str, Any] = {
    "!bytes": b"\xff",
    "!bytearray": bytearray(b"12"),
    "!huge": 10**5_000,
    "!decimal": Decimal("1e5"),
    "!nan": Decimal("NaN"),
    "!complex": 1j,
    "!timedelta": timedelta(days=3),
    "!longest": timedelta.max,
    "!negative": timedelta(days=-1),
    "!type": int,
    "!set": {1, 2},
    "!range": range(3, 9),
    "!long": range(1 << 40),
    "!generator": iter(()),
    "!index": _Index(),
    "!text": _Text("12"),
    "!mute": _Mute(),
    "!keys": {1: 2},
    "!tuple": ("a", "b"),
    "!surrogate": "\ud800",
    "!now": NOW,
}


def run(data: bytes) -> None:
    """Read the settings of a crawl, and make the filters that they ask for."""
    values = _values(data.decode("utf-8", "surrogateescape"))
    try:
        settings = BloomSettings.from_scrapy(BaseSettings(values), "spider")
    except ConfigurationError as error:
        text = str(error)
        assert "BLOOM_" in text, f"no setting is named: {text}"
        assert len(text) <= 3_000
        public = any(SECRET in shown(v, 9_000) for n, v in values.items() if n not in SECRETS)
        assert public or SECRET not in text, f"it shows a secret: {text}"
        return
    for window in (None, *settings.windows.others.values()):
        parameters = settings.parameters(window)
        options = FilterOptions.parse(**parameters)
        assert options == FilterOptions(**parameters)
        with suppress(ConfigurationError):
            _create(options)


def _create(options: FilterOptions) -> None:
    """Make a filter; what is stored of it can be read."""
    header = options.new_header()
    assert Header.from_fields(header.to_fields()) == header
    ring = Ring.fresh(header, options.config(DEFAULTS), NOW, run=options.run)
    assert ring_codec.parse(ring_codec.dump(ring)) == ring


def _values(text: str) -> dict[str, Any]:
    values = {}
    for line in text.split("\n"):
        name, separator, given = _split(line)
        if separator == "=":
            values[name] = given
        elif separator == ":":
            with suppress(ValueError, RecursionError):
                values[name] = _odd(json.loads(given))
    return values


def _split(line: str) -> tuple[str, str, str]:
    place = min((line.index(c) for c in "=:" if c in line), default=len(line))
    return line[:place], line[place : place + 1], line[place + 1 :]


def _odd(value: Any) -> Any:
    """Return a value with the texts replaced that stand for other values."""
    if isinstance(value, str):
        return ODD.get(value, value)
    if isinstance(value, list):
        return [_odd(item) for item in value]
    if isinstance(value, dict):
        return {name: _odd(item) for name, item in value.items()}
    return value


#: Settings -> good values of another kind than those that many settings have.
GOOD: dict[str, list[Any]] = {
    "BLOOM_REDIS_URL": [f"redis://:{SECRET}@localhost/0"],
    "BLOOM_REDIS_PARAMS": [{"password": SECRET}],
    "BLOOM_KEY": ["%(spider)s:bloom"],
    "BLOOM_SEEDS": [[1, 2, 3, 4, 5], "[5, 6]"],
    "BLOOM_RECRAWL_AFTER": ["5 months", "3 runs", "never"],
    "BLOOM_RECRAWL_RULES": [
        [
            ["/page/\\d+", "1 day"],
            [
                {"url": "(a|b)+$", "host": "x.example", "depth": 1},
                {"recrawl_after": "6h", "rotate_every": "1h", "capacity": 9},
            ],
            ["/", "run"],
        ],
        [["(", "run"]],
    ],
    "BLOOM_START_RECRAWL_AFTER": ["run", "default", {"recrawl_after": "1 day"}],
    "BLOOM_REMEMBER": ["crawled", "scheduled"],
    "BLOOM_CONFIRM": ["delivered", "crawled"],
    "BLOOM_CRAWLED_STATUSES": ["200-399, 404", [200, "301"]],
    "BLOOM_ON_REDIS_ERROR": ["close"],
    "BLOOM_METRICS_PORT": ["0.0.0.0:9410", "[::1]:0"],
}
#: Good values of many settings.
COMMON = [0, 1, 2, 7, 16, 90.0, 1e6, 1e-5, 0.5, True, "1", "0", "True", "1_000_000", "1 day", "36h"]
_HOSTILE = (
    *("[" * 5_000, "9" * 5_000, "1e999999999", "-" * 5_000, "9**9**9", "(" * 300, "\0"),
    *("1" + "_1" * 50, "[" + "1," * 9_000 + "]", "nan", "{" * 2_000, "'" + "a" * 9_000),
    *("0.1" * 50, "\u0661", "1_", "1e-320"),
)


def _seeds() -> Iterator[bytes]:
    for name in SETTINGS:
        for value in (*GOOD.get(name, ()), *COMMON):
            yield _lines({name: value})
            if not isinstance(value, str):
                yield f"{name}={json.dumps(value)}".encode()
        for odd in ODD:
            yield _lines({name: odd, "BLOOM_RUN": "x"})
        yield from (f"{name}={text}".encode() for text in _HOSTILE)
    yield _lines({name: good[0] for name, good in GOOD.items()})
    yield b"BLOOM_CAPACTY=1"


def _lines(values: dict[str, Any]) -> bytes:
    return "\n".join(f"{name}:{json.dumps(value)}" for name, value in values.items()).encode()


def _line(data: bytes, dice: Random) -> bytes:
    """Change the value in a line, or its setting."""
    name, separator, given = _split(data.decode("utf-8", "replace"))
    if name not in SETTINGS or dice.random() < 0.1:
        name = dice.choice([*SETTINGS])
    if dice.random() < 0.3:
        separator = ":"
        given = json.dumps(dice.choice([*GOOD.get(name, ()), *COMMON, *ODD, *_HOSTILE]))
    else:
        mutate = json_text if separator == ":" else raw
        given = mutate(given.encode(errors="replace"), dice).decode("utf-8", "replace")
    return f"{name}{separator or '='}{given}".encode()


TARGET = Target(run, _seeds, lines(_line), max_length=8_000)
