-- ledger_chunk: read a chunk of a block's ledger; changes nothing.
--
-- KEYS[1]  HASH  the content of the block's chunks, as in ledger_pack.lua
-- ARGV[1]  its member
--
-- Reply    {"bytes", chunk}  "" if it is not there any more
-- Cost     O(size of the chunk)
return {'bytes', redis.call('HGET', KEYS[1], ARGV[1]) or ''}
