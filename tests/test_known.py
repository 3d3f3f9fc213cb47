"""What a process was told lately: the last so many at least, and not much more."""

from scrapy_bloom.known import Known


def test_the_last_items_are_known() -> None:
    known = Known(capacity=100)
    items = [b"%d" % number for number in range(1_000)]
    for number, item in enumerate(items):
        known.add(item)
        assert all(one in known for one in items[max(0, number - 99) : number + 1])


def test_what_was_put_in_long_ago_is_forgotten() -> None:
    known = Known(capacity=100)
    for number in range(1_000):
        known.add(b"%d" % number)
    assert sum(b"%d" % number in known for number in range(1_000)) <= 200


def test_what_was_never_put_in_is_not_known() -> None:
    known = Known()
    assert b"a" not in known
    known.add(b"a")
    assert b"a" in known
    assert b"b" not in known
