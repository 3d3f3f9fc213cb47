-- ledger_drop: delete a chunk of a block's ledger.
--
-- KEYS[1]  ZSET  the block's chunks, as in ledger_pack.lua
-- ARGV[1]  the chunk
--
-- Reply    {"ok", "1"}  done, "0" if it is not there any more
-- Cost     O(log(chunks))
return {'ok', tostring(redis.call('ZREM', KEYS[1], ARGV[1]))}
