"""Make servers a cluster, and put a start page into scrapy-redis's queue.

    python prepare.py --nodes node-1:6379,node-2:6379,node-3:6379 \
        --queue redis://queue:6379 --start http://web:8000/

It waits until all of them answer. Run again, it changes nothing of the cluster, and the crawlers
look at the site again.
"""

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from urllib.request import urlopen

import redis

SLOTS = 16_384
#: Seconds that servers may take to start, and nodes to know each other.
PATIENCE, TICK = 60.0, 0.1
START_KEY = "queue:start_urls"


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it does not; the message says what has not come true.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE:.0f} s: {what}")
        time.sleep(TICK)


def make_cluster(addresses: list[tuple[str, int]]) -> None:
    """Share the slots among servers that have none, and let them meet.

    `valkey-cli --cluster create` does the same, from addresses without names.
    """
    clients = [redis.Redis(host, port) for host, port in addresses]
    for (host, port), client in zip(addresses, clients, strict=True):
        until(partial(answers, client), f"{host}:{port} answers")
    if not any(client.cluster("INFO")["cluster_slots_assigned"] != "0" for client in clients):
        for number, client in enumerate(clients):
            first, last = (SLOTS * one // len(clients) for one in (number, number + 1))
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, last - 1)
    host, port = addresses[0]
    for client in clients[1:]:
        # Nodes know each other by numbers. In containers these change with each start.
        client.execute_command("CLUSTER MEET", socket.gethostbyname(host), port)
    for client in clients:
        until(partial(is_whole, client, len(clients)), "the nodes know each other")
        client.close()


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def is_whole(client: redis.Redis, count: int) -> bool:
    """Whether a node knows all nodes, and a primary for each slot."""
    info = client.cluster("INFO")
    return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(count)


def is_served(url: str) -> bool:
    try:
        with urlopen(url, timeout=PATIENCE):
            return True
    except (OSError, HTTPException):
        return False


def push_start(queue_url: str, start_url: str) -> None:
    """Put a page into the list that `magazine/queue_spider.py` reads."""
    with redis.Redis.from_url(queue_url) as queue:
        until(partial(answers, queue), "the queue's server answers")
        queue.rpush(START_KEY, json.dumps({"url": start_url}))


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", required=True, help="host:port,host:port,...")
    parser.add_argument("--queue", required=True, metavar="URL", help="of scrapy-redis's server")
    parser.add_argument("--start", required=True, metavar="URL", help="of the start page")
    options = parser.parse_args()
    try:
        make_cluster([address(node) for node in options.nodes.split(",")])
        until(partial(is_served, options.start), f"{options.start} is served")
        push_start(options.queue, options.start)
    except (TimeoutError, redis.RedisError, OSError) as error:
        sys.exit(f"not prepared: {error}")
    print(f"The cluster is ready, and {options.start} is in the queue")


if __name__ == "__main__":
    main()
