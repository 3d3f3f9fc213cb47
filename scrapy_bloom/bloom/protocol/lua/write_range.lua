-- write_range: write a range of a bitmap of a filter that is not finished yet.
--
-- KEYS[1]  HASH    the block's ring
-- KEYS[2]  STRING  the bitmap, as allocate.lua has made it
-- ARGV[1]  v of the ring
-- ARGV[2]  bytes the bitmap has to have
-- ARGV[3]  first byte to write, from 0
-- ARGV[4]  the bytes; "" only looks whether the bitmap is there
--
-- Reply    {"ok", "", "", now}
--          {"stale", v, state, now}              the ring is another one
--          {"lost", v, "", now, "layers", name}  the bitmap is gone, or has another size
-- Cost     O(bytes): 0.1 ms for 256 KiB
local now = redis.call('TIME')[1]
local current = redis.call('HMGET', KEYS[1], 'v', 'state')
if current[1] ~= ARGV[1] then return {'stale', current[1] or '', current[2] or '', now} end
if redis.call('STRLEN', KEYS[2]) ~= tonumber(ARGV[2]) then
  return {'lost', ARGV[1], '', now, 'layers', string.match(KEYS[2], '[^:]+$')}
end
if #ARGV[4] > 0 then redis.call('SETRANGE', KEYS[2], ARGV[3], ARGV[4]) end
return {'ok', '', '', now}
