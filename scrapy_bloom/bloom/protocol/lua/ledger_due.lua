-- ledger_due: read one chunk of a block's ledger whose pages are forgotten; changes nothing.
--
-- KEYS[1]  ZSET  the block's chunks, as in ledger_pack.lua
-- KEYS[2]  HASH  their content
-- ARGV[1]  Unix time in seconds: chunks from before are due
-- ARGV[2]  tag: whose requests
-- ARGV[3]  which of them: a random number, so that workers take different ones
-- ARGV[4]  chunks that are looked at, at most: those of other tags count
--
-- Reply    {"bytes", member, a newline, and the chunk}  "" if none is due
-- Cost     O(chunks that are looked at)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[4])
local own = {}
for _, member in ipairs(due) do
  if string.sub(member, 1, #ARGV[2] + 1) == ARGV[2] .. ' ' then own[#own + 1] = member end
end
if #own == 0 then return {'bytes', ''} end
local member = own[ARGV[3] % #own + 1]
-- Evicted or damaged: an empty chunk is dropped as a damaged one.
return {'bytes', member .. '\n' .. (redis.call('HGET', KEYS[2], member) or '')}
