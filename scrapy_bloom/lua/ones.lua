-- ones: count the bits that are set in a part of a bitmap; changes nothing.
--
-- KEYS[1]  HASH    the block's ring
-- KEYS[2]  STRING  the bitmap
-- ARGV[1]  v of the ring the caller worked from
-- ARGV[2]  bytes of the bitmap
-- ARGV[3]  first byte to count in, from 0
-- ARGV[4]  last byte to count in
--
-- Reply    {"ok", ones}
--          {"stale", v, state, now}               as in claim.lua
--          {"lost", v, "", now, "layers", name}   as in claim.lua
-- Cost     O(bytes): 0.2 ms a MiB
local current = redis.call('HMGET', KEYS[1], 'v', 'state')
if (current[1] or '') ~= ARGV[1] then
  return {'stale', current[1] or '', current[2] or '', redis.call('TIME')[1]}
end
if redis.call('STRLEN', KEYS[2]) ~= tonumber(ARGV[2]) then
  local name = string.match(KEYS[2], '[^:]+$')
  return {'lost', ARGV[1], '', redis.call('TIME')[1], 'layers', name}
end
return {'ok', redis.call('BITCOUNT', KEYS[2], ARGV[3], ARGV[4])}
