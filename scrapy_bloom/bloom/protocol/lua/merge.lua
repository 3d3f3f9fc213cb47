-- merge: set bits in a part of a bitmap that is in use, atomically; what is set stays.
--
-- KEYS[1]  HASH    the block's ring
-- KEYS[2]  STRING  the bitmap of one of its layers
-- KEYS[3]  STRING  two names that are free, for the moment
-- KEYS[4]  STRING
-- ARGV[1]  v of the ring the caller works from
-- ARGV[2]  bytes the bitmap has to have
-- ARGV[3]  first byte to change, from 0
-- ARGV[4]  the bytes whose bits are to be set there
-- ARGV[5]  field of the ring with the layer's count, "n:<layer>"
-- ARGV[6]  URLs to add to it
--
-- Needs    prelude_ring.lua
-- Reply    {"ok", ""}
--          "stale" and "lost" as in prelude_ring.lua
--          Only "ok" has changed anything.
-- Cost     O(bytes of ARGV[4]): 0.3 to 0.8 ms for 256 KiB
local bitmap = KEYS[2]
if redis.call('HGET', ring, 'v') ~= ARGV[1] then return stale() end
if redis.call('STRLEN', bitmap) ~= tonumber(ARGV[2]) then return lost(bitmap) end
-- SET is what a server that is out of memory refuses; nothing has changed then.
redis.call('SET', KEYS[3], ARGV[4])
redis.call('SET', KEYS[4], redis.call('GETRANGE', bitmap, ARGV[3], ARGV[3] + #ARGV[4] - 1))
redis.call('BITOP', 'OR', KEYS[3], KEYS[3], KEYS[4])
redis.call('SETRANGE', bitmap, ARGV[3], redis.call('GET', KEYS[3]))
redis.call('DEL', KEYS[3], KEYS[4])
if ARGV[6] ~= '0' then redis.call('HINCRBY', ring, ARGV[5], ARGV[6]) end
return {'ok', ''}
