"""What a filter holds, for tests of what shows it; change it by ``dataclasses.replace``."""

from scrapy_bloom.bloom.protocol.info import FilterInfo, GenerationInfo

NOW, MONTH = 1_800_000_000, 30 * 86_400
GENERATION = GenerationInfo(
    opened=NOW,
    closes=NOW + MONTH,
    forgotten=NOW + 2 * MONTH,
    run=0,
    layers=1,
    capacity=1_000,
    count=335,
    estimated_error_rate=0,
    memory=1,
)
INFO = FilterInfo(
    key="shop:bloom",
    capacity=1_000,
    capacity_in_all=2_000,
    error_rate=1e-5,
    has_configured_sizes=True,
    window="2 months",
    period="1 month",
    ring="write-newest",
    stagger=False,
    counting=False,
    growth=2,
    max_memory=None,
    blocks=1,
    num_hashes=1,
    num_bits=1,
    count=335,
    estimated_error_rate=0,
    error_bound=0,
    claims=0,
    memory=1,
    lost_blocks=0,
    generations=(GENERATION,),
    now=NOW,
)
