"""What middlewares of the downloader set on requests, as a proxy or a User-Agent.

A redirect and a retry are made after these middlewares have run. They run again when the request is
put back, by then with another proxy: so it is stored without what they set.
"""

from typing import NamedTuple

from scrapy import Request

#: The key of ``meta``, of redirects and retries, that holds the names in a queue.
SET_LATER = "bloom_set_later"


class PartNames(NamedTuple):
    """Names of what a request has.

    Args:
        meta: keys of its ``meta``.
        headers: its headers.
    """

    meta: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset()

    @classmethod
    def of(cls, request: Request) -> "PartNames":
        """Return all that a request has."""
        headers = (name.decode("latin-1") for name in dict.keys(request.headers))
        return cls(frozenset(filter(_is_text, request.meta)), frozenset(headers))

    def without(self, others: "PartNames") -> "PartNames":
        """Return these names but others."""
        return PartNames(self.meta - others.meta, self.headers - others.headers)


NONE = PartNames()


def set_later(request: Request) -> PartNames:
    """Return what was set on the requests that became this one; stored text may be anything."""
    found = request.meta.get(SET_LATER)
    if not isinstance(found, dict):
        return NONE
    parts = (found.get(name) for name in PartNames._fields)
    lists = [part if isinstance(part, list) else [] for part in parts]
    return PartNames(*(frozenset(filter(_is_text, part)) for part in lists))


def note(request: Request, names: PartNames) -> None:
    """Note what was set on the requests that became a request."""
    request.meta[SET_LATER] = {
        name: sorted(part) for name, part in zip(PartNames._fields, names, strict=True)
    }


def _is_text(name: object) -> bool:
    return isinstance(name, str)
