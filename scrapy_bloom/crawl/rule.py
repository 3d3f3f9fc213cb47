"""Decides whether a page may be remembered, by what is known of a URL that it led to. Pure.

A page is remembered only when everything that it led to is safe: recorded in the filter, or stored
with its request where a later run finds it, or waited for by this page.
"""

from enum import Enum, auto


class Known(Enum):
    """What is known of a URL that isn't new."""

    #: It's in the filter.
    RECORDED = auto()
    #: It's a start page, which each run fetches. Nothing is known of how that ends.
    START = auto()
    #: It's pending, and its request is stored.
    STORED = auto()
    #: It's in progress in this process, and its request isn't stored.
    HERE = auto()
    #: The same in another process.
    ELSEWHERE = auto()
    #: It has failed, and waits. If its request isn't stored, so has the page that yielded it.
    FAILED = auto()
    #: It has failed, and its request isn't stored, as that of a redirect.
    ASTRAY = auto()
    #: Something has dropped its request in this run, and would drop it again.
    DROPPED = auto()


class Effect(Enum):
    """What it does to a page that led to it."""

    #: Nothing.
    SAFE = auto()
    #: It gets the request that the page has for it, and is stored then.
    STORE = auto()
    #: The page waits for it, and fails with it.
    WAIT = auto()
    #: The page isn't remembered in this run, so that the next one crawls it again.
    LEAVE = auto()
    #: The page fails.
    FAIL = auto()
    #: The page is dropped.
    DROP = auto()


def effect(known: Known, *, is_redirect: bool, has_request: bool) -> Effect:
    """Return what a URL that isn't new does to a page that led to it.

    Args:
        known: about the URL.
        is_redirect: whether it's where the page's own request has led. Such a page is nothing
            without it, and its request isn't stored, because middlewares have changed it.
        has_request: whether the page has a request for it that can be stored.
    """
    has_failed = known in (Known.FAILED, Known.ASTRAY)
    if (known is Known.HERE or has_failed) and has_request and not is_redirect:
        return Effect.STORE
    if known is Known.HERE:
        return Effect.WAIT
    unsure = Known.START if is_redirect else Known.ASTRAY
    if known in (Known.ELSEWHERE, unsure):  # the server, if it's asked, knows or stores more
        return Effect.LEAVE
    if has_failed and is_redirect:
        return Effect.FAIL
    return Effect.DROP if known is Known.DROPPED and is_redirect else Effect.SAFE
