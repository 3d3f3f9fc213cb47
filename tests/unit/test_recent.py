"""What a process was told lately: the last so many at least, and not much more."""

from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.crawl.recent import Recent


def test_the_last_items_are_recent() -> None:
    recent = Recent(capacity=100)
    items = [b"%d" % number for number in range(1_000)]
    for number, item in enumerate(items):
        recent.add(item)
        assert all(one in recent for one in items[max(0, number - 99) : number + 1])


def test_what_was_put_in_long_ago_is_forgotten() -> None:
    recent = Recent(capacity=100)
    for number in range(1_000):
        recent.add(b"%d" % number)
    assert sum(b"%d" % number in recent for number in range(1_000)) <= 200


def test_what_was_never_put_in_is_not_recent() -> None:
    recent = Recent()
    assert b"a" not in recent
    recent.add(b"a")
    assert b"a" in recent
    assert b"b" not in recent


@given(st.lists(st.binary(max_size=3)), st.integers(1, 20))
def test_it_holds_what_two_sets_hold(items: list[bytes], capacity: int) -> None:
    recent, young, old = Recent(capacity), set[bytes](), set[bytes]()
    for item in items:
        recent.add(item)
        young.add(item)
        if len(young) == capacity:
            young, old = set(), young
        assert all(one in recent for one in young | old)
        assert sum(one in recent for one in set(items)) == len(young | old)
