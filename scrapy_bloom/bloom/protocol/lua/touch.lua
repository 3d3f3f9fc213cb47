-- touch: write and delete a key, so that the connection's last write comes after all earlier writes of
-- all clients on the server: a WAIT behind it on the same connection waits for those as well.
--
-- KEYS[1]  STRING  a key of the block that nothing else uses; it is gone again at the end
--
-- Reply    {"ok", ""}
-- Cost     O(1); two commands for the replicas
redis.call('SET', KEYS[1], '')
redis.call('DEL', KEYS[1])
return {'ok', ''}
