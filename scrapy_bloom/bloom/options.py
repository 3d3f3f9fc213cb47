"""What a user asks of a filter, beside what is stored. Pure."""

import secrets
from dataclasses import dataclass, field, fields, replace

from scrapy_bloom.bloom.errors import ConfigurationError, FilterMismatchError
from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.hashing import draw_seeds
from scrapy_bloom.bloom.model.header import WRITE_ALL, WRITE_NEWEST, Header
from scrapy_bloom.bloom.model.schedule import Schedule, Span
from scrapy_bloom.bloom.model.sizing import plan

#: A window that remembers for ever, where None is "as stored".
NEVER = "never"


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """What the user asks of the filter; None is "as stored, else the default".

    Args:
        capacity: URLs a generation takes.
        error_rate: bound on the false-positive rate.
        blocks: number of blocks.
        seeds: the seeds themselves.
        num_hashes: how many seeds to draw.
        window: how long URLs are remembered; NEVER for ever.
        period: how often the ring rotates.
        order: order of the ring.
        stagger: whether blocks rotate one after the other.
        counting: whether items can be discarded.
        growth: size of the next layer in sizes of the last one.
        max_memory: bytes beyond which no layer is added; 0 for no limit.
        run: id of the run, for windows in runs; None shows none.
        fingerprinter: import path of the class that makes the fingerprints.
    """

    capacity: int | None = None
    error_rate: float | None = None
    blocks: int | None = None
    seeds: tuple[int, ...] | None = field(default=None, repr=False)  # secret
    num_hashes: int | None = None
    window: Span | str | None = None
    period: Span | None = None
    order: str | None = None
    stagger: bool | None = None
    counting: bool | None = None
    growth: float | None = None
    max_memory: int | None = None
    run: str | None = None
    fingerprinter: str = ""

    @classmethod
    def like(cls, header: Header, config: Config, run: str | None) -> "FilterOptions":
        """Return what makes a filter place items as another one does.

        Args:
            header: the other's header.
            config: its configuration.
            run: id of the run.
        """
        schedule = config.schedule
        return cls(
            capacity=config.capacity,
            error_rate=config.error_rate,
            blocks=header.blocks,
            seeds=header.seeds,
            window=NEVER if schedule is None else schedule.window,
            period=None if schedule is None else schedule.period,
            order=header.order,
            stagger=header.stagger,
            counting=header.counting,
            growth=config.growth,
            max_memory=config.max_memory or 0,
            run=run,
            fingerprinter=header.fingerprinter,
        )

    def over(self, other: "FilterOptions") -> "FilterOptions":
        """Return what the user asks for here, and for the rest in another."""
        asked = {own.name: getattr(self, own.name) for own in fields(self)}
        if self.num_hashes is not None:
            other = replace(other, seeds=None)
        if self.window is not None:
            other = replace(other, period=None)
        return replace(other, **{n: value for n, value in asked.items() if value not in (None, "")})

    def config(self, stored: Config) -> Config:
        """Return what the user gave, the rest as stored.

        Raises:
            ConfigurationError: window and period do not go together.
        """
        return Config(
            self.capacity or stored.capacity,
            self.error_rate or stored.error_rate,
            self._schedule(stored.schedule),
            stored.growth if self.growth is None else self.growth,
            stored.max_memory if self.max_memory is None else self.max_memory or None,
        )

    def new_header(self, default: Config) -> Header:
        """Return the header of a filter that is to be created.

        Raises:
            ConfigurationError: the filter is impossible.
        """
        config, order = self.config(default), self.order or WRITE_NEWEST
        if self.counting and order == WRITE_ALL:
            raise ConfigurationError(
                f'BLOOM_COUNTING = True and BLOOM_RING = "{WRITE_ALL}" do not go together: an item '
                "would have to be discarded from generations that may never have had it. Set "
                f'BLOOM_RING = "{WRITE_NEWEST}", or leave it unset'
            )
        sized = plan(
            config.capacity,
            config.error_rate,
            tested=config.tested(order),
            growing=bool(config.growth),
            blocks=self.blocks,
            num_hashes=len(self.seeds) if self.seeds else self.num_hashes,
            counting=bool(self.counting),
        )
        return Header(
            secrets.token_hex(16),
            sized.blocks,
            self.seeds or draw_seeds(sized.num_hashes),
            self.fingerprinter,
            order,
            bool(self.stagger),
            bool(self.counting),
        )

    def check(self, header: Header, prefix: str) -> None:
        """Refuse a stored header that differs from what the user asked for.

        Raises:
            FilterMismatchError: says what is stored, what was asked and what to do.
        """
        hashes = len(header.seeds)
        for setting, asked, stored, text in (
            ("BLOOM_BLOCKS", self.blocks, header.blocks, f"{header.blocks} blocks"),
            ("BLOOM_SEEDS", self.num_hashes, hashes, f"{hashes} seeds"),
            ("BLOOM_SEEDS", self.seeds, header.seeds, f"{hashes} other seeds"),
            ("BLOOM_RING", self.order, header.order, f"the ring order {header.order!r}"),
            ("BLOOM_STAGGER", self.stagger, header.stagger, f"stagger = {header.stagger}"),
            ("BLOOM_COUNTING", self.counting, header.counting, f"counting = {header.counting}"),
        ):
            if asked in (None, stored):
                continue
            # Seeds are not shown: they are secret.
            shown = f"a list of {len(asked)}" if isinstance(asked, tuple) else repr(asked)
            raise FilterMismatchError(
                f"the filter {prefix!r} is stored with {text}, but {setting} is {shown}: remove "
                f"{setting} to use the filter as it is, or set another BLOOM_KEY for a new one"
            )

    def _schedule(self, stored: Schedule | None) -> Schedule | None:
        window: Span | str | None = self.window
        if window is None and stored is not None:
            window = stored.window
        if not isinstance(window, Span):
            if self.period is not None:
                raise ConfigurationError(
                    f'BLOOM_ROTATE_EVERY = "{self.period}" has nothing to rotate: set '
                    "BLOOM_RECRAWL_AFTER too, or remove it"
                )
            return None
        if stored is not None and window == stored.window:
            return Schedule.of(window, self.period or stored.period)
        return Schedule.of(window, self.period)
