-- swap: replace a block's ring by the next one, if it still is the one the caller knows.
--
-- KEYS[1]     HASH    the block's ring
-- KEYS[2..]   STRING  bitmaps of the layers that go, come or stay
-- ARGV[1]     v the caller expects, "" if it expects no ring
-- ARGV[2]     v of the new ring, random
-- ARGV[3]     state of the new ring, JSON
-- ARGV[4]     Unix time in seconds at which the ring expires, 0 for never
-- ARGV[5..]   per bitmap three values: the layer's name; its bytes if it comes, 0 if it goes, -1 if
--             it stays; and the Unix time at which it expires, 0 for never. What goes is deleted by
--             drop.lua, one bitmap at a time, or else expires soon: in a minute
--
-- Needs       prelude_ring.lua
-- Reply       {"ok", "", "", now}       done
--             {"stale", v, state, now}  another client was faster: this is the ring now
-- Cost        allocates whole bitmaps at once, as a rule one: about 3 ms for 8 MiB. So: no more than
--             that in one pipeline (swaps.py).
local now = redis.call('TIME')[1]
if (redis.call('HGET', ring, 'v') or '') ~= ARGV[1] then return stale() end

local function expire(key, time)
  if time == '0' then redis.call('PERSIST', key) else redis.call('EXPIREAT', key, time) end
end

-- The ring is written before anything is deleted: when the server is out of memory, it refuses the
-- first write of a script only, and only if that is one that may take memory.
redis.call('HSET', ring, 'v', ARGV[2], 'state', ARGV[3])
for i = 2, #KEYS do
  local name, bytes, time = ARGV[3 * i - 1], tonumber(ARGV[3 * i]), ARGV[3 * i + 1]
  if bytes == 0 then
    redis.call('HDEL', ring, 'n:' .. name)
    redis.call('EXPIRE', KEYS[i], 60)
  else
    if bytes > 0 then
      -- Whatever lies under a new layer's key (after a restored backup, say) is not ours: it goes.
      redis.call('DEL', KEYS[i])
      -- Writing the last bit allocates the bitmap once, at its final size.
      redis.call('SETBIT', KEYS[i], bytes * 8 - 1, 0)
      redis.call('HSET', ring, 'n:' .. name, 0)
    end
    expire(KEYS[i], time)
  end
end
expire(ring, ARGV[4])
return {'ok', '', '', now}
