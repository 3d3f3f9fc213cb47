-- fetch: read a range of a bitmap; changes nothing.
--
-- KEYS[1]  HASH    the block's ring
-- KEYS[2]  STRING  the bitmap of one of its layers
-- ARGV[1]  v of the ring the caller worked from
-- ARGV[2]  bytes the bitmap has to have
-- ARGV[3]  first byte to read, from 0
-- ARGV[4]  bytes to read; 0 only looks whether the bitmap is there
--
-- Reply    {"bytes", the bytes}
--          {"stale", v, state, now}  the ring is another one, "" and "" if it is gone
--          {"lost", v, "", now, "layers", name}  the bitmap is gone, or has another size
-- Cost     O(bytes): 0.1 ms for 256 KiB
local now = redis.call('TIME')[1]
local current = redis.call('HMGET', KEYS[1], 'v', 'state')
if current[1] ~= ARGV[1] then return {'stale', current[1] or '', current[2] or '', now} end
if redis.call('STRLEN', KEYS[2]) ~= tonumber(ARGV[2]) then
  return {'lost', ARGV[1], '', now, 'layers', string.match(KEYS[2], '[^:]+$')}
end
if ARGV[4] == '0' then return {'bytes', ''} end
return {'bytes', redis.call('GETRANGE', KEYS[2], ARGV[3], ARGV[3] + ARGV[4] - 1)}
