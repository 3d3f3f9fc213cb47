-- ledger_due: read one chunk of a block's ledger whose pages are forgotten; changes nothing.
--
-- KEYS[1]  ZSET  the block's chunks, as in ledger_pack.lua
-- ARGV[1]  Unix time in seconds: chunks from before are due
-- ARGV[2]  which of them: a random number, so that workers take different ones
--
-- Reply    {"bytes", chunk}  "" if none is due
-- Cost     O(log(chunks) + chunks that are due)
local before = '(' .. ARGV[1]
local due = redis.call('ZCOUNT', KEYS[1], '-inf', before)
if due == 0 then return {'bytes', ''} end
local place = ARGV[2] % due
return {'bytes', redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', before, 'LIMIT', place, 1)[1]}
