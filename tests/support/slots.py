"""Moves slots of a cluster from node to node, step by step."""

from contextlib import ExitStack

import redis
from redis.crc import key_slot

from support.polling import until
from support.servers import Server


class SlotMove:
    """A slot on its way from the node that owns it to another one.

    Args:
        nodes: all primaries of the cluster.
        key: one with that slot.
    """

    def __init__(self, nodes: list[Server], key: str) -> None:
        self.slot = key_slot(key.encode())
        self._stack = ExitStack()
        clients = [self._stack.enter_context(node.client()) for node in nodes]
        self._clients = clients
        ids = [client.execute_command("CLUSTER", "MYID").decode() for client in clients]
        until(lambda: len(self._owners()) == 1, "all nodes know the owner")
        owner = ids.index(self._owners().pop())
        self.source, self.target = nodes[owner], nodes[owner - 1]
        self._from, self._to, self._new_owner = clients[owner], clients[owner - 1], ids[owner - 1]
        self._set(self._to, "IMPORTING", ids[owner])
        self._set(self._from, "MIGRATING", ids[owner - 1])

    def _owners(self, *clients: redis.Redis) -> set[str]:
        """Return the id of the node that owns the slot, as these nodes know it, or all."""
        return {
            str(node[2], "ascii")
            for client in clients or self._clients
            for first, last, node, *_ in client.execute_command("CLUSTER", "SLOTS")
            if first <= self.slot <= last
        }

    def _set(self, client: redis.Redis, *words: str) -> None:
        client.execute_command("CLUSTER", "SETSLOT", self.slot, *words)

    def keys(self) -> list[bytes]:
        """Return the slot's keys that are still where they were."""
        keys: list[bytes] = self._from.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 1_000)
        return keys

    def move(self, *keys: bytes) -> None:
        """Move some of them."""
        self._from.execute_command(
            *("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5_000, "KEYS", *keys)
        )

    def finish(self) -> None:
        """Move what is left and make the target the owner.

        It tells the other nodes, under an epoch newer than theirs. A node that were told by this
        process would still believe an older message of the last owner.
        """
        if keys := self.keys():
            self.move(*keys)
        self._set(self._to, "NODE", self._new_owner)
        until(lambda: self._owners() == {self._new_owner}, "all nodes know the new owner")
        self._set(self._from, "NODE", self._new_owner)  # it is not on its way any more
        self._stack.close()
