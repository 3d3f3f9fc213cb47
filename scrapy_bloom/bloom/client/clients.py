"""Makes clients of redis-py's that repeat nothing: of a server, a cluster, or a service."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from ssl import SSLContext
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.cluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_bloom.bloom.client import tls
from scrapy_bloom.bloom.client.guarded import GUARDED
from scrapy_bloom.bloom.client.routes import Address

#: Arguments of clients for clusters that those of one server do not have.
_OF_CLUSTERS = signature(redis.RedisCluster.__init__).parameters.keys() - {"host", "port", "retry"}


def make(factory: Callable[..., redis.Redis], arguments: Mapping[str, Any]) -> redis.Redis:
    """Return a client of one server.

    Raises:
        TypeError: there is an argument that the client does not know.
    """
    client = factory(**arguments, retry=Retry(NoBackoff(), 0))
    pool = getattr(client, "connection_pool", None)
    if type(pool) is redis.ConnectionPool:
        pool.connection_class = GUARDED.get(pool.connection_class, pool.connection_class)
        # Bad arguments show up only when a connection object is made; this one never connects.
        pool.connection_class(**pool.connection_kwargs)
    return client


def make_async(arguments: Mapping[str, Any], context: SSLContext | None) -> Any:
    """Return an asyncio client of one server.

    Args:
        arguments: of the client.
        context: with the options of TLS in the arguments.
    """
    retry = AsyncRetry(NoBackoff(), 0)
    client = redis.asyncio.Redis(**_without_tls(arguments, context), retry=retry)
    if context is not None:
        client.connection_pool.connection_class = tls.AsyncTLSConnection
        client.connection_pool.connection_kwargs["tls_context"] = context
    return client


def make_cluster(nodes: Sequence[Address], arguments: Mapping[str, Any]) -> Any:
    """Return a client of a cluster; it connects to one of the nodes.

    Raises:
        redis.RedisError: no node can be reached, or used.
        TypeError: there is an argument that the client does not know.
    """
    own = {name: value for name, value in arguments.items() if name in _OF_CLUSTERS}
    template = make(redis.Redis, {k: v for k, v in arguments.items() if k not in own})
    first, *others = nodes
    client: Any = redis.RedisCluster(
        # With a URL, redis-py makes its pools by a given function: with connections of ours.
        url=f"redis://{first}",
        startup_nodes=[redis.cluster.ClusterNode(*node) for node in others],  # type: ignore[no-untyped-call]
        connection_pool_class=partial(_make_pool, template.connection_pool),
        retry=Retry(NoBackoff(), 0),
        **own,
    )
    client.cluster_error_retry_attempts = 0
    return client


def _make_pool(template: redis.ConnectionPool, **given: Any) -> redis.ConnectionPool:
    """Return a pool for a node of a cluster, with the arguments of a template."""
    names = ("host", "port", "redis_connect_func")
    arguments = {**template.connection_kwargs, **{name: given[name] for name in names}}
    return redis.ConnectionPool(
        connection_class=template.connection_class,
        max_connections=template.max_connections,
        **arguments,
    )


def make_async_cluster(
    nodes: Sequence[Address], arguments: Mapping[str, Any], context: SSLContext | None
) -> Any:
    """Return an asyncio client of a cluster.

    Args:
        nodes: some of its nodes.
        arguments: of the client.
        context: with the options of TLS in the arguments.
    """
    client: Any = redis.asyncio.RedisCluster(
        startup_nodes=[redis.asyncio.cluster.ClusterNode(*node) for node in nodes],
        retry=AsyncRetry(NoBackoff(), 0),
        **_without_tls(arguments, context),
    )
    client.cluster_error_retry_attempts = 0
    if context is not None:
        manager = client.nodes_manager
        manager.connection_kwargs |= {
            "connection_class": tls.AsyncTLSConnection,
            "tls_context": context,
        }
        for node in manager.startup_nodes.values():
            node.connection_class = tls.AsyncTLSConnection
            node.connection_kwargs["tls_context"] = context
    return client


def _without_tls(arguments: Mapping[str, Any], context: SSLContext | None) -> dict[str, Any]:
    if context is None:
        return dict(arguments)
    return {k: v for k, v in arguments.items() if k != "ssl" and k not in tls.IN_URL}
