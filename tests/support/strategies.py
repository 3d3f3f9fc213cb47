"""Values for hypothesis: lengths of time and numbers of runs."""

from hypothesis import strategies as st

from scrapy_bloom.bloom.model.schedule import HALF_MONTHS, MAX_YEARS, RUNS, SECONDS, Span

#: The largest count of a span.
MOST = {HALF_MONTHS: 24 * MAX_YEARS, SECONDS: 36_525 * 86_400, RUNS: 1_000_000}
spans = st.sampled_from([HALF_MONTHS, SECONDS, RUNS]).flatmap(
    lambda unit: st.builds(Span, st.integers(1, MOST[unit]), st.just(unit))
)
