"""The codes of log messages and errors: what each means, its causes, and what to do about it.

A message ends with its code, as ``[bloom-outage]``. Codes stay when texts change. The codes are the
anchors of docs/reference/messages.md, which ``make reference`` writes from this registry.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """What a code stands for. Markdown.

    Args:
        meaning: what has happened, and what follows for the crawl.
        cause: why it happens.
        remedy: what to do.
    """

    meaning: str
    cause: str
    remedy: str


def tagged(code: str, text: str) -> str:
    """Return a message with its code: ``the filter is full [bloom-full]``.

    Raises:
        KeyError: the code is not registered.
    """
    if code not in MESSAGES:
        raise KeyError(f"{code} is not in MESSAGES of scrapy_bloom/messages.py")
    return f"{text} [bloom-{code}]"


#: The codes of ``BloomError`` and its subclasses. At its start, an error stops the crawl.
ERRORS: Mapping[str, Message] = {
    "configuration": Message(
        "A setting or an argument is wrong, or settings contradict each other. The crawl does "
        "not begin.",
        "The message names the setting, its value and what it may be.",
        "Correct the setting: [settings](settings.md) has what each accepts.",
    ),
    "mismatch": Message(
        "The stored filter was created with other blocks, seeds, ring order, stagger or "
        "counting than the settings give, or with a window that remembers for longer: the crawl "
        "does not begin. Or two filters differ that a set operation of the library uses together.",
        "What is stored depends on these options, so they cannot change while a filter lives. And "
        "a run forgets nothing earlier than the run before has promised.",
        "Remove the setting, or set it as it is stored, to use the filter as it is; or set another "
        "`BLOOM_KEY`, for a new filter. To let it forget earlier, run `scrapy bloom settings "
        "--apply` with the settings of the crawl. For set operations, create one filter with "
        "`like=` the other.",
    ),
    "storage": Message(
        "The server cannot be used. The crawl does not begin.",
        "It is not there, refuses the user or the password, is a read-only replica, has TLS on "
        "this port, holds something else under a key of the filter, or the like: the message "
        "says which.",
        "Do what the message says: correct `BLOOM_REDIS_URL`, or repair the server.",
    ),
    "server-full": Message(
        "The server is out of memory and refuses to write. The crawl does not begin.",
        "Its `maxmemory` is reached, and its `maxmemory-policy` deletes nothing.",
        "Raise `maxmemory`, or give the filter a server of its own with `BLOOM_REDIS_URL`.",
    ),
    "rights": Message(
        "The filter's user lacks rights on the server. The crawl does not begin.",
        "The user's ACL rules lack commands or keys, which the message names.",
        "`scrapy bloom acl` prints the rules: [rights of the filter's user](../acl.md).",
    ),
    "not-ready": Message(
        "The server did not become ready within 30 seconds. The crawl does not begin.",
        "It is slow, is loading its data, or its primary is being replaced.",
        "Start the crawl again when the server answers. If it is far away, raise `BLOOM_TIMEOUT`.",
    ),
    "restarted": Message(
        "The server is another process than before, and may have lost its last writes.",
        "It was restarted, or a replica has taken over, while the filter was in use.",
        "In a crawl, none: it looks up again what may be lost. In the library, open the filter "
        "again.",
    ),
    "archive": Message(
        "A file is no saved filter, is damaged or too large, or cannot be read or written.",
        "The message says which.",
        "Export the filter again, or correct the path.",
    ),
    "saturated": Message(
        "A filter is too full to estimate from its bits how many items it holds.",
        "Nearly all bits are set, for instance after a union of many filters.",
        "Use a larger capacity. `len(filter)` counts exactly.",
    ),
    "error": Message(
        "Any other error of scrapy-bloom.",
        "The message says which.",
        "If the message names no remedy, please report it.",
    ),
}

#: At the start of a crawl: what the settings and the server make likely.
_STARTING: Mapping[str, Message] = {
    "addon-unused": Message(
        "The add-on does nothing: another dupefilter is used.",
        "`ADDONS` has `scrapy_bloom.Addon`, and `DUPEFILTER_CLASS` is set as well.",
        "Remove `DUPEFILTER_CLASS`, or set it to `scrapy_bloom.BloomDupeFilter`; or remove the "
        "add-on.",
    ),
    "waiting": Message(
        "The server does not answer yet; the crawl waits for it, up to 30 seconds.",
        "It is slow, is loading its data, or its primary is being replaced.",
        "Wait. If it happens at each start, see the server's log.",
    ),
    "settings-changed": Message(
        "The window, period, capacity, error rate, growth or memory limit of the stored filter "
        "were replaced by those of the settings. A WARNING if times have changed, else INFO.",
        "A setting was changed or left out (its default holds then), or spiders with other "
        "settings share the `BLOOM_KEY`.",
        "If it was not intended: `scrapy bloom settings --apply` with the settings of before. If "
        "spiders share the filter: give each a `BLOOM_KEY` of its own, or all of them the same "
        "settings.",
    ),
    "short-window": Message(
        "`BLOOM_RECRAWL_AFTER` is less than an hour: pages are crawled again soon after they were "
        "crawled, and in each run.",
        "The window is meant, or its unit is wrong.",
        'If it is not meant, write the unit that is, as in `"2 months"`.',
    ),
    "fingerprinter": Message(
        "The filter holds fingerprints of another kind: its URLs look new, and are crawled again.",
        "`REQUEST_FINGERPRINTER_CLASS` has changed since the filter was created.",
        "Use the same class as before, or another `BLOOM_KEY`. After a migration from scrapy-"
        "redis, keep `ScrapyRedisFingerprinter` for good: [migrating](../migrating.md).",
    ),
    "eviction": Message(
        "When its memory is full, the server may delete parts of the filter; their URLs are "
        "then crawled again.",
        "The server's `maxmemory-policy` evicts keys, as servers that are caches do.",
        "Set `maxmemory-policy noeviction`, or give the filter a server of its own with "
        "`BLOOM_REDIS_URL`.",
    ),
    "ledger-unused": Message(
        "`BLOOM_LEDGER` is set and has no effect.",
        "No filter of the crawl has a window, so that no page is ever forgotten and due.",
        'Set `BLOOM_RECRAWL_AFTER`, as in `"6 months"`; or remove `BLOOM_LEDGER`.',
    ),
    "no-metrics": Message(
        "The crawl goes on without its page of metrics.",
        "The port of `BLOOM_METRICS_PORT` is in use, the address is not one of this machine, or "
        "the crawl runs without Twisted's reactor.",
        "Choose another port, or 0 for any free one.",
    ),
    "http-cache": Message(
        "A page that is due is crawled again from Scrapy's HTTP cache, so no change is seen.",
        "`HTTPCACHE_ENABLED` with `HTTPCACHE_EXPIRATION_SECS = 0`, which never expires.",
        "Set an expiration shorter than the time between crawls.",
    ),
    "seeds": Message(
        "A site that knows the seeds can choose URLs that make other pages count as seen.",
        "`BLOOM_SEEDS` lists seeds, and settings are often in a repository.",
        "Keep the list as secret as a password; or remove it and set another `BLOOM_KEY`: the "
        "seeds of a new filter are drawn at random.",
    ),
    "queue-lost": Message(
        "If the crawl is killed (or stopped), pages that were queued are lost: they count as "
        "seen, and are not crawled before they are forgotten.",
        '`BLOOM_REMEMBER = "scheduled"` with a queue that does not outlive the crawl.',
        'Set `BLOOM_REMEMBER = "crawled"`; or keep the queue (`SCHEDULER_PERSIST = True` of '
        "scrapy-redis).",
    ),
    "claims-ignored": Message(
        "Requests that an earlier crawl claimed and did not crawl are not taken over.",
        'It ran with `BLOOM_REMEMBER = "crawled"`, this one runs with `"scheduled"`; or another '
        "crawl is still working on them.",
        "Run the spider once with `-s BLOOM_REMEMBER=crawled`. `scrapy bloom pending` lists the "
        "claims, and `--release` ends them.",
    ),
    "window-removed": Message(
        "Pending requests of a window are crawled now, and remembered in its filter as before.",
        "No rule of `BLOOM_RECRAWL_RULES` has a window any more in which an earlier crawl left "
        "requests.",
        "None is needed. If the rule was removed by mistake, add it again.",
    ),
    "cleared": Message(
        "The filter was emptied when this worker started: all URLs are new.",
        "`SCHEDULER_FLUSH_ON_START` is set.",
        "If that was not intended, remove `SCHEDULER_FLUSH_ON_START`. With several workers, "
        "each start of one of them clears the filter for all.",
    ),
}

#: About the filter: how full it is, and what was lost of it.
_FILTER: Mapping[str, Message] = {
    "filling": Message(
        "A generation holds 80% of the URLs that it is made for. INFO if it can grow then; a "
        "WARNING if it cannot: the oldest generation is then forgotten early, or further URLs "
        "are remembered for the run only.",
        "Nearly `BLOOM_CAPACITY` URLs were found in one period.",
        "With `BLOOM_GROWTH = 0`: set a larger `BLOOM_CAPACITY`, or `BLOOM_GROWTH = 2`.",
    ),
    "grown": Message(
        "A generation has got a further, larger layer. INFO: the error rate stays within its "
        "bound.",
        "There are more URLs than `BLOOM_CAPACITY` in one period.",
        "None is needed. The `BLOOM_CAPACITY` that the message names takes less memory.",
    ),
    "full": Message(
        "New URLs are not recorded, so that none is hidden: each process remembers them for its "
        "run only (`bloom/unrecorded`). The next run crawls them again.",
        "A generation is full, and `BLOOM_GROWTH = 0` or `BLOOM_MAX_MEMORY` does not let it grow.",
        "Set a larger `BLOOM_CAPACITY` (it counts from the next generation on), `BLOOM_GROWTH` "
        "or `BLOOM_MAX_MEMORY`.",
    ),
    "rotated-early": Message(
        "The oldest generation was forgotten before its time: its URLs may be crawled again a "
        "period earlier.",
        "A generation was full, and could not grow.",
        "Set a larger `BLOOM_CAPACITY`, `BLOOM_GROWTH` or `BLOOM_MAX_MEMORY`.",
    ),
    "rotated": Message(
        "A period has ended: a new generation was opened, and the oldest one was forgotten. INFO.",
        "The time for it had come: `BLOOM_ROTATE_EVERY`, or `scrapy bloom rotate`.",
        "None is needed.",
    ),
    "lost-block": Message(
        "A part of the filter was gone; its URLs are crawled again (`bloom/lost_blocks`).",
        "The server has evicted keys, something else has deleted or flushed them, or the server "
        "was restarted without its data.",
        "Set `maxmemory-policy noeviction`, give the filter a server of its own, and see that "
        "the server saves its data.",
    ),
    "too-many-workers": Message(
        "There are more entries of workers than there can be workers. Old and damaged ones are "
        "removed.",
        "Something else writes to the filter's keys, or very many workers were killed.",
        "See what else uses the key that the message names.",
    ),
}

#: About single requests.
_REQUESTS: Mapping[str, Message] = {
    "not-identified": Message(
        "Requests like the one shown are not crawled (`bloom/not_identified`). An ERROR, once "
        "for each class of exception.",
        "The project's `REQUEST_FINGERPRINTER_CLASS` raises an exception for them.",
        "Correct the class; the traceback shows where.",
    ),
    "request-failed": Message(
        "The filter failed for a request: requests like it are remembered by this process for "
        "this run only (`bloom/unknown`).",
        "An unexpected error; the message shows it.",
        "Please report it, unless the message names a cause in your project.",
    ),
    "bad-key": Message(
        '`meta["bloom_key"]` of a request is not used: its URL identifies it.',
        "The key is empty, or neither str nor bytes.",
        "Give a non-empty str: [meta keys](meta.md).",
    ),
    "bad-has-item": Message(
        '`meta["bloom_has_item"]` of a request is not used: what its callback yields counts.',
        "The value is neither `True` nor `False`.",
        "Give one of them: [meta keys](meta.md).",
    ),
    "bad-version": Message(
        '`meta["bloom_version"]` of a request is not used: it is treated as without a version.',
        "The version is empty, longer than 200 bytes in UTF-8, or no str.",
        "Give a short text, or leave the key out: [meta keys](meta.md).",
    ),
    "unknown-window": Message(
        '`meta["bloom_recrawl_after"]` of a request is not used: the request has the window that '
        "the settings give it.",
        "It is no time, or one that no setting has: filters are opened when the crawl begins.",
        "Correct it, or add a rule with that window to `BLOOM_RECRAWL_RULES`.",
    ),
    "unknown-meta-key": Message(
        "A key of a request's `meta` begins with `bloom_` and has no effect. Once for each key.",
        "It is misspelt, or is none of scrapy-bloom's.",
        "Correct it, as the message suggests, or give it another name: [meta keys](meta.md).",
    ),
    "not-kept": Message(
        "A request is claimed without being stored. If the crawl stops before it is crawled, "
        "the next run fetches the page that yielded it again (`bloom/not_kept`).",
        "JSON cannot hold the request (a lambda as callback, an object in `meta`); it has "
        "credentials and `BLOOM_KEEP_HEADERS = False`; or `BLOOM_PENDING_MEMORY` is used up. "
        "The message says which.",
        "Use methods of the spider as callbacks and plain values in `meta`; raise "
        "`BLOOM_PENDING_MEMORY`.",
    ),
    "too-many-unkept": Message(
        "Pages that wait for requests which could not be stored are not recorded any more: the "
        "next run fetches them again.",
        "Very many pending requests are of the kind of `bloom-not-kept`.",
        "As for [bloom-not-kept](#bloom-not-kept).",
    ),
    "not-restored": Message(
        "A stored request of an earlier run cannot be put back; its URL is crawled when it is "
        "found again (`bloom/not_restored`).",
        "The spider has lost the callback, the stored text is damaged, or `BLOOM_KEEP_HEADERS` "
        "was set to `False` since.",
        "If the spider was changed on purpose, none. Else restore the callback and run it again.",
    ),
    "not-proposed": Message(
        "Requests of the ledger (`BLOOM_LEDGER`) were due and could not be looked up. They stay in "
        "it, and the next run tries again. An ERROR with a traceback.",
        "The project's own fingerprinter has raised an exception, or a fault of this package.",
        "See the traceback.",
    ),
    "not-scheduled": Message(
        "A stored request of an earlier run could not be handed to Scrapy's engine; it stays "
        "claimed, and the next run tries again. An ERROR with a traceback.",
        "The scheduler or a signal handler has raised an exception.",
        "See the traceback.",
    ),
}

#: While the server is not there, or was replaced.
_SERVER: Mapping[str, Message] = {
    "outage": Message(
        "The server cannot be used. As `BLOOM_ON_REDIS_ERROR` says, the crawl goes on by itself "
        "until the server is back, and then writes what was missed; or it closes. Another line "
        "is logged when the reason changes.",
        "The message names it: not there, too slow, refused credentials, out of memory, missing "
        "rights, ...",
        "Do what the message says. No page is hidden; some may be crawled twice.",
    ),
    "paused": Message(
        "The crawl waits for the server.",
        "The server was away for so long that 500,000 requests wait to be written.",
        "Repair the server. The crawl goes on by itself.",
    ),
    "repeated": Message(
        "Pages that were crawled lately are crawled again (`bloom/repeated`).",
        "The server was restarted or replaced by a replica, and may have lost the claims on "
        "their links.",
        "None is needed.",
    ),
    "restarts-unnoticed": Message(
        "A restart of the server is not noticed: after one that loses the last writes, a page "
        "may count as recorded while links of it are lost.",
        "The server hides its `run_id` in `INFO server`, or a proxy shows another one each time.",
        "Grant `INFO` to the user ([rights](../acl.md)), or connect without the proxy.",
    ),
    "replicas": Message(
        "Pages are recorded although fewer replicas than `BLOOM_WAIT_REPLICAS` have the claims "
        "on their links (`bloom/unreplicated`). A primary that fails together with a crawler "
        "may lose links.",
        "Replicas are missing or late, or the server refuses `WAIT`.",
        "Repair the replicas, grant `WAIT`, or lower `BLOOM_WAIT_REPLICAS`.",
    ),
    "unwritten": Message(
        "At its end, the crawl could not write all it knew: these pages may be crawled again, "
        "and none is hidden.",
        "The server did not answer when the crawl ended.",
        "None is needed; repair the server before the next run.",
    ),
    "no-last-look": Message(
        "The last line about each filter does not say how many URLs it holds, and its gauges "
        "(`bloom/fill_ratio`, `bloom/estimated_error_rate`, `bloom/generations`, `bloom/layers`) "
        "are None.",
        "The server did not answer when the crawl ended.",
        "`scrapy bloom info` shows the filter when the server is back.",
    ),
    "background-failed": Message(
        "The background thread met an unexpected error; it is handled like an outage, and tried "
        "again. An ERROR with a traceback.",
        "An unexpected error; the message shows it.",
        "Please report it with the traceback.",
    ),
    "job-failed": Message(
        "A queued write was dropped: its page may be crawled again. An ERROR with a traceback.",
        "An unexpected error; the message shows it.",
        "Please report it with the traceback.",
    ),
    "embedded-running": Message(
        "The embedded server was left running when its last user ended.",
        "It did not stop in time, or its directory cannot be used.",
        "See `server.log` in the directory that the message names. The next crawl uses the "
        "server as it is.",
    ),
}

#: Sections of the reference, with their codes.
SECTIONS: Mapping[str, Mapping[str, Message]] = {
    "Errors": ERRORS,
    "At the start": _STARTING,
    "About the filter": _FILTER,
    "About requests": _REQUESTS,
    "About the server": _SERVER,
}
#: All codes, without the prefix ``bloom-``.
MESSAGES: Mapping[str, Message] = {
    code: message for section in SECTIONS.values() for code, message in section.items()
}
