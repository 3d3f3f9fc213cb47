-- ledger_pack: replace the first entries of one block's ledger by chunks, unless another client has.
--
-- KEYS[1]    LIST  the block's entries, as in prelude_ledger.lua
-- KEYS[2]    ZSET  its chunks: member = "tag nonce"; score = Unix time of the newest entry in it
-- KEYS[3]    HASH  field = "tag nonce", value = the chunk: requests, packed
-- ARGV[1]    digest of the entries as the caller has read them (ledger_read.lua), which may be no UTF-8
-- ARGV[2]    how many these are
-- ARGV[3]    Unix time in seconds at which the chunks expire, 0 for never
-- ARGV[4..]  per chunk: its score, its member, and the chunk; none if all entries were damaged
--
-- Reply    {"ok", "1"}  done
--          {"ok", "0"}  the entries are others by now: nothing has changed
-- Cost     O(entries)
local count, entries = tonumber(ARGV[2]), {}
for i = 1, count do entries[i] = redis.call('LINDEX', KEYS[1], i - 1) or '' end
if redis.sha1hex(table.concat(entries, '\n')) ~= ARGV[1] then return {'ok', '0'} end
for i = 4, #ARGV, 3 do
  redis.call('HSET', KEYS[3], ARGV[i + 1], ARGV[i + 2])
  redis.call('ZADD', KEYS[2], ARGV[i], ARGV[i + 1])
end
redis.call('LTRIM', KEYS[1], count, -1)
for i = 2, 3 do
  if ARGV[3] == '0' then
    redis.call('PERSIST', KEYS[i])
  else
    redis.call('EXPIREAT', KEYS[i], ARGV[3])
  end
end
return {'ok', '1'}
