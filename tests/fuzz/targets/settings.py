"""Settings: a crawl's options, as text of the command line and as values of any type.

A line is ``NAME=text``, as ``-s`` gives it, or ``NAME:JSON``. Texts in JSON that begin with ``!``
stand for other values: see ``ODD``.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
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


#: Good values of settings.
GOOD: dict[str, list[Any]] = {
    "BLOOM_REDIS_URL": [f"redis://:{SECRET}@localhost/0"],
    "BLOOM_REDIS_PARAMS": [{"password": SECRET}],
    "BLOOM_KEY": ["%(spider)s:bloom"],
    "BLOOM_CAPACITY": [1e6, "1_000_000"],
    "BLOOM_ERROR_RATE": [1e-5],
    "BLOOM_BLOCKS": [16],
    "BLOOM_SEEDS": [[1, 2, 3, 4, 5], "[5, 6]", 7],
    "BLOOM_RECRAWL_AFTER": ["5 months", "36h", "3 runs", "never", 90.0],
    "BLOOM_ROTATE_EVERY": ["1 month", 90],
    "BLOOM_RUN": ["2027-01-31", 7],
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
    "BLOOM_START_RECRAWL_AFTER": ["run", "default", "1 week", {"recrawl_after": "1 day"}],
    "BLOOM_STAGGER": [True, "0"],
    "BLOOM_GROWTH": [2, 1.5, 0],
    "BLOOM_MAX_MEMORY": [1 << 30],
    "BLOOM_PENDING_MEMORY": [0],
    "BLOOM_KEEP_HEADERS": [False, "1"],
    "BLOOM_REMEMBER": ["crawled", "scheduled"],
    "BLOOM_CONFIRM": ["delivered", "crawled"],
    "BLOOM_HEARTBEAT": [30],
    "BLOOM_RETRY_AFTER": ["1 day", 60],
    "BLOOM_RETRY_ITEM_ERRORS": [True, "0"],
    "BLOOM_CRAWLED_STATUSES": ["200-399, 404", [200, "301"], 200],
    "BLOOM_LEDGER": [False, "yes"],
    "BLOOM_BATCH": [64],
    "BLOOM_WAIT_REPLICAS": ["0", "2", 1],
    "BLOOM_CACHE_SIZE": [1_000],
    "BLOOM_ON_REDIS_ERROR": ["close"],
    "BLOOM_ENABLED": ["True", 0],
    "BLOOM_TIMEOUT": [2.5],
    "BLOOM_METRICS_PORT": [9410, "0.0.0.0:9410", "[::1]:0"],
}
_HOSTILE = (
    *(
        "[" * 5_000,
        "9" * 5_000,
        "1e999999999",
        "-" * 5_000,
        "9**9**9",
        "(" * 300,
        "\0",
        "1" + "_1" * 50,
    ),
    *(
        "[" + "1," * 9_000 + "]",
        "nan",
        "{" * 2_000,
        "'" + "a" * 9_000,
        "0.1" * 50,
        "\u0661",
        "1_",
        "1e-320",
    ),
)


def _seeds() -> Iterator[bytes]:
    yield _lines({name: good[0] for name, good in GOOD.items()})
    for name in SETTINGS:
        for value in GOOD[name]:
            yield _lines({name: value})
            if not isinstance(value, str):
                yield f"{name}={json.dumps(value)}".encode()
        for odd in ODD:
            yield _lines({name: odd}) + b"\n" + _lines({"BLOOM_RUN": "x"})
        yield from (f"{name}={text}".encode() for text in _HOSTILE)
    yield b"BLOOM_CAPACTY=1"


def _lines(values: dict[str, Any]) -> bytes:
    return "\n".join(f"{name}:{json.dumps(value)}" for name, value in values.items()).encode()


def _line(data: bytes, dice: Any) -> bytes:
    """Change the value in a line, or its type."""
    name, separator, given = _split(data.decode("utf-8", "replace"))
    if name not in SETTINGS or dice.random() < 0.1:
        name = dice.choice([*SETTINGS])
    kind = dice.randrange(8)
    if kind == 0:
        given = json.dumps(dice.choice([*ODD]))
        separator = ":"
    elif kind == 1:
        given = json.dumps(dice.choice(GOOD[name]))
        separator = dice.choice("=:")
    elif kind == 2:
        given = dice.choice(_HOSTILE)
        separator = "="
    else:
        mutate = json_text if separator == ":" else raw
        given = mutate(given.encode(errors="replace"), dice).decode("utf-8", "replace")
    return f"{name}{separator or '='}{given}".encode()


TARGET = Target(run, _seeds, lines(_line), max_length=8_000)
