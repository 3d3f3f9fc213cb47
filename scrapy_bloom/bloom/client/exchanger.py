"""One command and its reply on a redis-py client's connection, without the client's layers.

``execute_command`` costs 20 us: as much as all that Scrapy and this package do for a new URL.
"""

import os
import time
from typing import Any

import redis

from scrapy_bloom.bloom.client.unreadable import UNREADABLE, invalid

#: A server that replied within so many seconds the last time is polled for as long.
NEAR_SECONDS = 0.0002


class Exchanger:
    """Sends commands that are written out already, and reads their replies.

    As redis-py does, it takes a connection from the client's pool for each command, connected and
    with nothing left to read, and gives it back. Unlike redis-py, it never repeats a command.

    Args:
        pool: of a client.

    Attributes:
        keeps_connection: whether the connection stays here until ``give_back``: to take one and to
            give it back costs 10 us. For pools that nothing else uses at the same time.
    """

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pool = pool
        #: At most one for each thread. Only ``pop`` and ``append``, which no other thread divides.
        self._kept: list[Any] = []
        self.keeps_connection = False
        self._is_near = False

    def exchange(self, frame: bytes) -> Any:
        """Send a command and return its reply.

        Raises:
            redis.RedisError: as redis-py does.
            OSError: as redis-py does.
        """
        connection = self._take()
        try:
            begin = time.perf_counter()
            connection.send_packed_command([frame])
            if self._is_near:
                # To sleep until the reply comes, and to be woken, takes longer than the server.
                until = begin + NEAR_SECONDS
                while not connection.can_read() and time.perf_counter() < until:
                    pass
            reply = connection.read_response()
        except redis.ResponseError:
            raise  # it is the whole reply
        except UNREADABLE as error:
            connection.disconnect()
            if isinstance(error, UnicodeError):  # of a text, not of the protocol
                raise
            raise invalid(error) from error
        except BaseException:
            # A reply that comes late would be taken for that of the next command.
            connection.disconnect()
            raise
        else:
            self._is_near = time.perf_counter() - begin < NEAR_SECONDS
            return reply
        finally:
            if self.keeps_connection:
                self._kept.append(connection)
            else:
                self._pool.release(connection)

    def give_back(self) -> None:
        """Give what is kept back to the pool."""
        while self._kept:
            self._pool.release(self._kept.pop())

    def _take(self) -> Any:
        try:
            connection = self._kept.pop()
        except IndexError:
            return self._pool.get_connection()
        try:
            # As the pool does: the server may have closed it. After a fork, it is the parent's.
            if connection.pid == os.getpid() and not connection.can_read():
                return connection
        except (redis.RedisError, OSError):
            pass
        connection.disconnect()
        self._pool.release(connection)
        return self._pool.get_connection()
