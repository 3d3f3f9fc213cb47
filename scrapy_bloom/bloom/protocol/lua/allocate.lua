-- allocate: make an empty bitmap of a filter that is not finished yet.
--
-- KEYS[1]  HASH    the block's ring, as the caller has written it
-- KEYS[2]  STRING  the bitmap
-- ARGV[1]  v of the ring
-- ARGV[2]  the layer's name
-- ARGV[3]  bytes of the bitmap
-- ARGV[4]  items that it will hold
-- ARGV[5]  Unix time in seconds at which it expires unless the filter is finished
--
-- Reply    {"ok", "", "", now}
--          {"stale", v, state, now}  the ring is another one
-- Cost     allocates a whole bitmap at once: about 3 ms for 8 MiB. So: one at a time, never
--          pipelined.
local now = redis.call('TIME')[1]
local current = redis.call('HMGET', KEYS[1], 'v', 'state')
if current[1] ~= ARGV[1] then return {'stale', current[1] or '', current[2] or '', now} end
-- Written before anything is deleted, as in swap.lua.
redis.call('HSET', KEYS[1], 'n:' .. ARGV[2], ARGV[4])
redis.call('DEL', KEYS[2])
redis.call('SETBIT', KEYS[2], ARGV[3] * 8 - 1, 0)
redis.call('EXPIREAT', KEYS[2], ARGV[5])
return {'ok', '', '', now}
