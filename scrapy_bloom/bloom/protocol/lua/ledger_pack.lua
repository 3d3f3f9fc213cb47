-- ledger_pack: replace the first entries of one block's ledger by chunks, unless another client has.
--
-- KEYS[1]    LIST  the block's entries, as in ledger_add.lua
-- KEYS[2]    ZSET  its chunks: member = "tag nonce"; score = Unix time of the newest entry in it
-- KEYS[3]    HASH  field = "tag nonce", value = the chunk: requests, packed
-- ARGV[1]    the first entry as the caller has read it, ARGV[2] the last one
-- ARGV[3]    how many these are
-- ARGV[4]    Unix time in seconds at which the chunks expire, 0 for never
-- ARGV[5..]  per chunk: its score, its member, and the chunk; none if all entries were damaged
--
-- Reply    {"ok", "1"}  done
--          {"ok", "0"}  the entries are others by now: nothing has changed
-- Cost     O(entries)
local count = tonumber(ARGV[3])
local first, last = redis.call('LINDEX', KEYS[1], 0), redis.call('LINDEX', KEYS[1], count - 1)
if first ~= ARGV[1] or last ~= ARGV[2] then return {'ok', '0'} end
for i = 5, #ARGV, 3 do
  redis.call('HSET', KEYS[3], ARGV[i + 1], ARGV[i + 2])
  redis.call('ZADD', KEYS[2], ARGV[i], ARGV[i + 1])
end
redis.call('LTRIM', KEYS[1], count, -1)
for i = 2, 3 do
  if ARGV[4] == '0' then
    redis.call('PERSIST', KEYS[i])
  else
    redis.call('EXPIREAT', KEYS[i], ARGV[4])
  end
end
return {'ok', '1'}
