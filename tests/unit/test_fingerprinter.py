"""ScrapyRedisFingerprinter makes the fingerprints of scrapy-redis; long fingerprints are hashed."""

from hypothesis import given
from hypothesis import strategies as st
from scrapy import FormRequest, Request
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_bloom.fingerprinter import (
    MAX_FINGERPRINT,
    VERSIONED,
    ScrapyRedisFingerprinter,
    bounded,
)

#: Parts of URLs in which canonicalization has something to do.
parts = st.text(st.sampled_from("abAB09-._~%/ä€ +;:@&=?"), max_size=12)
urls = st.builds(
    "{0}://{1}/{2}?{3}&{4}#{5}".format,
    st.sampled_from(["http", "HTTPS"]),
    st.sampled_from(["example.com", "EXAMPLE.com:80", "bücher.example", "[::1]:8080"]),
    *([parts] * 4),
)
requests = st.builds(
    Request,
    urls,
    method=st.sampled_from(["GET", "post", "PUT", "HEAD"]),
    body=st.one_of(st.none(), st.binary(max_size=20), st.text("aä", max_size=9)),
    headers=st.dictionaries(st.sampled_from(["Accept", "X-A"]), st.just("x"), max_size=2),
    meta=st.dictionaries(st.sampled_from(["verbatim_url", "bloom_key"]), st.just("x"), max_size=2),
)


def theirs(request: Request) -> bytes:
    return bytes.fromhex(RFPDupeFilter(None, "key").request_fingerprint(request))


@given(requests)
def test_it_makes_the_fingerprints_of_scrapy_redis(request: Request) -> None:
    fingerprinter = ScrapyRedisFingerprinter()
    assert fingerprinter.fingerprint(request) == theirs(request)
    # Again, now that it is known; and of another request like it.
    assert fingerprinter.fingerprint(request) == theirs(request)
    assert fingerprinter.fingerprint(request.copy()) == theirs(request)


def test_forms_are_told_apart() -> None:
    fingerprinter = ScrapyRedisFingerprinter()
    forms = [FormRequest("https://example.com", formdata={"q": str(n)}) for n in range(3)]
    found = [fingerprinter.fingerprint(form) for form in forms]
    assert found == [theirs(form) for form in forms]
    assert len(set(found)) == 3


@given(st.binary(max_size=2 * MAX_FINGERPRINT), st.binary(max_size=2 * MAX_FINGERPRINT))
def test_what_filters_hold_is_short_and_tells_apart_what_differs(
    first: bytes, other: bytes
) -> None:
    assert len(bounded(first)) <= MAX_FINGERPRINT
    assert (bounded(first) == bounded(other)) == (first == other)
    if len(first) <= MAX_FINGERPRINT and not first.startswith(VERSIONED):
        assert bounded(first) == first
