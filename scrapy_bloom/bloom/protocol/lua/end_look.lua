-- end_look: note that a worker has looked at all claims.
--
-- KEYS[1]  HASH  as in begin_look.lua
-- ARGV[1]  the worker's group
-- ARGV[2]  when its look began, as begin_look.lua has returned it
-- ARGV[3]  "1" if it has found nothing
--
-- Reply    {"ok", "", "", now}
-- Cost     O(1)
local mine = tonumber(ARGV[2])
local looks = redis.call('HGET', KEYS[1], ARGV[1])
local begun, done, clean = string.match(looks or '', '^(%d+) (%d+) (%d+)$')
if begun and mine <= tonumber(begun) then  -- else the clock has gone back
  done = math.max(done, mine)
  clean = ARGV[3] == '1' and math.max(clean, mine) or clean
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %d %d', begun, done, clean))
end
return {'ok', '', '', redis.call('TIME')[1]}
