-- bitcount: count the bits that are set in a part of a bitmap; changes nothing.
--
-- KEYS[1]  HASH    the block's ring
-- KEYS[2]  STRING  the bitmap
-- ARGV[1]  v of the ring the caller works from
-- ARGV[2]  bytes of the bitmap
-- ARGV[3]  first byte to count in, from 0
-- ARGV[4]  last byte to count in
--
-- Needs    prelude_ring.lua
-- Reply    {"ok", ones}
--          "stale" and "lost" as in prelude_ring.lua
-- Cost     O(bytes): 0.2 ms a MiB
local bitmap = KEYS[2]
if redis.call('HGET', ring, 'v') ~= ARGV[1] then return stale() end
if redis.call('STRLEN', bitmap) ~= tonumber(ARGV[2]) then return lost(bitmap) end
return {'ok', redis.call('BITCOUNT', bitmap, ARGV[3], ARGV[4])}
