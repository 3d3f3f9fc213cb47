"""Refuses objects that are no clients of the right kind."""

import inspect
from typing import Any

import redis.asyncio.client
import redis.asyncio.cluster
import redis.cluster

from scrapy_bloom.bloom.errors import ConfigurationError

#: Objects that send nothing before ``execute()``.
_PIPELINES = (
    redis.client.Pipeline,
    redis.cluster.ClusterPipeline,
    redis.asyncio.client.Pipeline,
    redis.asyncio.cluster.ClusterPipeline,
)


def check_client(client: Any, *, is_async: bool) -> None:
    """Refuse objects that are no clients, or clients of the other kind.

    Raises:
        ConfigurationError: says what it is, and what to use.
    """
    module = "redis.asyncio" if is_async else "redis"
    packages = {base.__module__.partition(".")[0] for base in type(client).__mro__}
    awaits = inspect.iscoroutinefunction(getattr(client, "execute_command", None))
    if isinstance(client, type):
        problem = "a class: pass an object of it"
    elif isinstance(client, _PIPELINES):
        problem = "a pipeline, which sends nothing before it is executed: use its client"
    elif "valkey" in packages:
        problem = "of the package valkey; clients of redis work with Valkey servers too"
    elif not hasattr(client, "evalsha"):
        problem = "no client"
    elif awaits and not is_async:
        problem = "for asyncio: use AsyncBloomFilter, or another client"
    elif is_async and not awaits:
        problem = "not for asyncio: use BloomFilter, or another client"
    elif not _encodes_as_utf8(client):
        problem = "of another encoding than UTF-8: make it without the argument encoding"
    else:
        return
    kind = client if isinstance(client, type) else type(client)
    raise ConfigurationError(
        f"client is a {module}.Redis or {module}.RedisCluster; got {kind.__module__}."
        f"{kind.__name__}, which is {problem}"
    )


def _encodes_as_utf8(client: Any) -> bool:
    if not hasattr(client, "get_encoder"):
        return True  # a cluster client for asyncio
    encoding = str(client.get_encoder().encoding)
    return encoding.lower().replace("-", "").replace("_", "") == "utf8"
