"""The filters of a crawl: the default one and one for each other window, on one connection."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scrapy.exceptions import NotConfigured
from scrapy.settings import BaseSettings
from scrapy.utils.project import data_path

from scrapy_bloom.bloom.client.connection import Connection, connect, connect_scrapy_redis
from scrapy_bloom.bloom.filter import BloomFilter
from scrapy_bloom.bloom.model.ring import Ring
from scrapy_bloom.bloom.options import EXTEND
from scrapy_bloom.bloom.protocol import deletion
from scrapy_bloom.settings import DEFAULT, WORDS, BloomSettings

#: Is called with a filter's key, its window, an event, and the ring that changed.
Notify = Callable[[str, str, str, Ring], object]


@dataclass
class Filters:
    """The filters of a crawl.

    Attributes:
        by_window: the filter of each window, the default one first.
        connection: what they share.
        left: windows that the settings no longer have.
    """

    by_window: dict[str, BloomFilter]
    connection: Connection
    left: Collection[str] = ()

    @property
    def default(self) -> BloomFilter:
        """The filter of all requests that no other window is named for."""
        return self.by_window[DEFAULT]

    @property
    def forgetting(self) -> dict[str, BloomFilter]:
        """The filters, once they are open, that forget."""
        return {
            window: bloom
            for window, bloom in self.by_window.items()
            if bloom.config is not None and bloom.config.schedule is not None
        }

    @property
    def round_trips(self) -> int:
        """Times that any of them sent commands and waited for the replies."""
        return sum(bloom.round_trips for bloom in self.by_window.values())

    def stay_quick(self) -> None:
        """From now on, do not wait for a host name to be resolved: rather fail at once."""
        for bloom in self.by_window.values():
            bloom.may_connect = not self.connection.resolves

    def noted_windows(self, names: Sequence[str]) -> set[str]:
        """Note in the main filter which windows there are; return all that were noted before.

        Raises:
            StorageError: the server does not answer.
        """
        return self.default.run(partial(deletion.note_windows, names=names))

    def close(self) -> None:
        """Close the connection; the filters stay on the server."""
        self.connection.close()


def connect_filters(
    settings: BloomSettings,
    scrapy_settings: BaseSettings,
    *,
    on_difference: str = EXTEND,
    left: Collection[str] = (),
    fingerprinter: str = "",
    notify: Notify | None = None,
) -> Filters:
    """Return the filters that the settings describe; nothing is sent before their first use.

    Args:
        settings: ours.
        scrapy_settings: Scrapy's.
        on_difference: what happens to filters that are stored with other settings; see
            ``BloomFilter``.
        left: windows that the settings no longer have; their filters stay as they are stored.
        fingerprinter: import path of the class that makes the fingerprints.
        notify: is called with what happens to the filters.

    Raises:
        ConfigurationError: the address or a client argument is wrong.
        StorageError: the embedded server does not start.
    """
    connection, windows = _connect(settings, scrapy_settings), settings.windows
    parameters = {
        DEFAULT: settings.parameters(),
        **{name: settings.parameters(window) for name, window in windows.others.items()},
        **{name: {"run": settings.options.run} for name in left},
    }
    blooms = {}
    for name, given in parameters.items():
        key = settings.key if name == DEFAULT else f"{settings.key}:{name}"
        blooms[name] = BloomFilter(
            connection.client,
            key,
            **given,
            on_difference=on_difference,
            notify=notify and partial(notify, key, name),
            fingerprinter=fingerprinter,
            label=connection.address,
            words=WORDS,
            timeout=settings.timeout,
        )
    if len(blooms) == 1:
        blooms[DEFAULT].keep_connection()
    return Filters(blooms, connection, left)


def _connect(settings: BloomSettings, scrapy_settings: BaseSettings) -> Connection:
    timeout, params = settings.timeout, settings.redis_params
    if settings.redis_url is None:
        return connect_scrapy_redis(scrapy_settings, timeout=timeout, params=params, words=WORDS)
    data_dir = data_directory("bloom")
    return connect(
        settings.redis_url, timeout=timeout, params=params, data_dir=data_dir, words=WORDS
    )


def data_directory(name: str) -> Path:
    """Return a directory in the project's ``.scrapy``; without a project, in the current one's."""
    try:
        return Path(data_path(name))
    except NotConfigured:
        return Path(".scrapy", name)  # settings by SCRAPY_SETTINGS_MODULE, and no scrapy.cfg
