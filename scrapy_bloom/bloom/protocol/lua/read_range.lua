-- read_range: read a range of a bitmap; changes nothing.
--
-- KEYS[1]  HASH    the block's ring
-- KEYS[2]  STRING  the bitmap of one of its layers
-- ARGV[1]  v of the ring the caller works from
-- ARGV[2]  bytes the bitmap has to have
-- ARGV[3]  first byte to read, from 0
-- ARGV[4]  bytes to read; 0 only looks whether the bitmap is there
--
-- Needs    prelude_ring.lua
-- Reply    {"bytes", the bytes}
--          "stale" and "lost" as in prelude_ring.lua
-- Cost     O(bytes): 0.1 ms for 256 KiB
local bitmap = KEYS[2]
if redis.call('HGET', ring, 'v') ~= ARGV[1] then return stale() end
if redis.call('STRLEN', bitmap) ~= tonumber(ARGV[2]) then return lost(bitmap) end
if ARGV[4] == '0' then return {'bytes', ''} end
return {'bytes', redis.call('GETRANGE', bitmap, ARGV[3], ARGV[3] + ARGV[4] - 1)}
