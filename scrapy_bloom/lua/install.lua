-- install: put a ring that was written beside, with its bitmaps, in the place of a block's.
--
-- KEYS[1]    HASH    the block's ring
-- KEYS[2]    STRING  a name that is free, for bitmaps that change places
-- KEYS[3]    HASH    the block's claims
-- KEYS[4..]  STRING  the bitmaps under names of their own, as stage.lua has allocated them; then, in
--                    the same order, their names in the ring; then the bitmaps that go
-- ARGV[1]    v of the ring that is there, "" if there is none
-- ARGV[2]    v of the new ring, random
-- ARGV[3]    state of the new ring, JSON
-- ARGV[4]    Unix time in seconds at which the ring expires, 0 for never
-- ARGV[5]    "1" if the claims are of the same filter, and stay; else "0"
-- ARGV[6..]  per bitmap four values: its layer's name, its bytes, the URLs in it, and the Unix
--            time at which it expires, 0 for never
--
-- Reply      {"ok", "", "", now}       done. What was there under the layers' names is under their
--                                      own names now; it and what goes expire in a minute
--            {"stale", v, state, now}  the ring is another one by now
--            {"lost", v, "", now, "layers", names}  bitmaps are gone, or have another size
--            Only "ok" has changed anything.
-- Cost       O(layers): bitmaps are renamed, not copied, and none is freed.
local ring, free, layers = KEYS[1], KEYS[2], (#ARGV - 5) / 4
local now = redis.call('TIME')[1]
local current = redis.call('HMGET', ring, 'v', 'state')
if (current[1] or '') ~= ARGV[1] then
  return {'stale', current[1] or '', current[2] or '', now}
end
local lost = {}
for i = 1, layers do
  if redis.call('STRLEN', KEYS[3 + i]) ~= tonumber(ARGV[4 * i + 3]) then
    lost[#lost + 1] = ARGV[4 * i + 2]
  end
end
if #lost > 0 then return {'lost', ARGV[1], '', now, 'layers', table.concat(lost, ' ')} end

local function expire(key, time)
  if time == '0' then redis.call('PERSIST', key) else redis.call('EXPIREAT', key, time) end
end

-- Written before anything is deleted, as in swap.lua.
redis.call('HSET', ring, 'v', ARGV[2])
redis.call('DEL', ring)
redis.call('HSET', ring, 'v', ARGV[2], 'state', ARGV[3])
for i = 1, layers do
  local staged, key = KEYS[3 + i], KEYS[3 + layers + i]
  if redis.call('EXISTS', key) == 1 then
    -- To rename onto it would free it: 0.6 ms for 8 MiB.
    redis.call('RENAME', key, free)
    redis.call('RENAME', staged, key)
    redis.call('RENAME', free, staged)
    redis.call('EXPIRE', staged, 60)
  else
    redis.call('RENAME', staged, key)
  end
  redis.call('HSET', ring, 'n:' .. ARGV[4 * i + 2], ARGV[4 * i + 4])
  expire(key, ARGV[4 * i + 5])
end
for i = 4 + 2 * layers, #KEYS do redis.call('EXPIRE', KEYS[i], 60) end
expire(ring, ARGV[4])
if ARGV[5] == '0' then redis.call('UNLINK', KEYS[3]) end
return {'ok', '', '', now}
