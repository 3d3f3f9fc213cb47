-- stage: allocate a bitmap that is loaded from a file, beside the filter; or delete it.
--
-- KEYS[1]  STRING  the bitmap, under a name of this load's own
-- ARGV[1]  its bytes; 0 deletes it
-- ARGV[2]  seconds after which it goes, unless it is written to or put into a ring
--
-- Reply    {"ok", "", "", now}
-- Cost     allocates a whole bitmap at once: about 3 ms for 8 MiB; or frees it, 0.6 ms. So: one at a
--          time, never pipelined.
local bytes = tonumber(ARGV[1])
if bytes > 0 then
  redis.call('SETBIT', KEYS[1], bytes * 8 - 1, 0)
  redis.call('EXPIRE', KEYS[1], ARGV[2])
else
  redis.call('UNLINK', KEYS[1])
end
return {'ok', '', '', redis.call('TIME')[1]}
