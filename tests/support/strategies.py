"""Values for hypothesis: what filters may be made of."""

from dataclasses import replace

from hypothesis import strategies as st

from scrapy_bloom.bloom.model.generations import Config
from scrapy_bloom.bloom.model.header import WRITE_ALL, WRITE_NEWEST, Header
from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, MAX_YEARS, RUNS, SECONDS, Schedule, Span

headers = st.builds(
    Header,
    id=st.text("0123456789abcdef", min_size=32, max_size=32),
    blocks=st.integers(4, 64),
    seeds=st.lists(st.integers(0, 2**32 - 1), min_size=5, max_size=20, unique=True).map(tuple),
    fingerprinter=st.text(max_size=50),
    order=st.sampled_from([WRITE_NEWEST, WRITE_ALL]),
    stagger=st.booleans(),
)
# A counting filter writes the newest generation only.
headers |= headers.map(lambda header: replace(header, order=WRITE_NEWEST, counting=True))
configs = st.builds(
    Config,
    capacity=st.integers(1, 10**6),
    error_rate=st.floats(1e-4, 0.5),
    schedule=st.sampled_from(
        [
            None,
            Schedule(Span(12, HALF_MONTHS), Span(2, HALF_MONTHS)),
            Schedule(Span(2, "runs"), Span(1, "runs")),
            Schedule(Span(90, "seconds"), Span(30, "seconds")),
        ]
    ),
    growth=st.just(0) | st.integers(1, 64) | st.floats(1, 64),
    max_memory=st.none() | st.integers(1 << 40, 1 << 50),
)
#: The largest count of a span.
MOST = {HALF_MONTHS: 24 * MAX_YEARS, SECONDS: 36_525 * 86_400, RUNS: 1_000_000}
spans = st.sampled_from([HALF_MONTHS, SECONDS, RUNS]).flatmap(
    lambda unit: st.builds(Span, st.integers(1, MOST[unit]), st.just(unit))
)
