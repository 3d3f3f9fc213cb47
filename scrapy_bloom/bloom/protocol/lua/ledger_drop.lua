-- ledger_drop: delete a chunk of a block's ledger.
--
-- KEYS[1]  ZSET  the block's chunks, as in ledger_pack.lua
-- KEYS[2]  HASH  their content
-- ARGV[1]  member of the ZSET
--
-- Reply    {"ok", "1"}  done, "0" if it is not there any more
-- Cost     O(log(chunks))
redis.call('HDEL', KEYS[2], ARGV[1])
return {'ok', tostring(redis.call('ZREM', KEYS[1], ARGV[1]))}
