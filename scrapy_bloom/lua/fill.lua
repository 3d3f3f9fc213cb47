-- fill: write a range of a bitmap that is loaded from a file.
--
-- KEYS[1]  STRING  the bitmap, as stage.lua has allocated it
-- ARGV[1]  its bytes
-- ARGV[2]  seconds after which it goes, unless it is written to again or put into a ring
-- ARGV[3]  first byte to write, from 0
-- ARGV[4]  the bytes; "" only puts off its end
--
-- Reply    {"ok", "", "", now}
--          {"lost", "", "", now, "layers", name}  it is gone, or has another size
-- Cost     O(bytes): 0.1 ms for 256 KiB
local now = redis.call('TIME')[1]
if redis.call('STRLEN', KEYS[1]) ~= tonumber(ARGV[1]) then
  return {'lost', '', '', now, 'layers', string.match(KEYS[1], '[^:]+$')}
end
if #ARGV[4] > 0 then redis.call('SETRANGE', KEYS[1], ARGV[3], ARGV[4]) end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return {'ok', '', '', now}
