-- heartbeat: note that a worker is alive, and return all workers.
--
-- KEYS[1]  HASH  the filter's workers: field = the worker's id, value = "until description"
-- ARGV[1]  id of the worker; "" changes nothing
-- ARGV[2]  seconds until it counts as dead, 0 for a worker that has stopped; "" removes it, if its
--          entry still is ARGV[3]
-- ARGV[3]  its description, JSON
-- ARGV[4]  Unix time in seconds at which the workers expire, 0 for never
--
-- Reply    {"ok", "", "", now, id, "until description", ...}
-- Cost     O(workers)
local now = redis.call('TIME')[1]
if ARGV[2] == '' then
  if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[3] then redis.call('HDEL', KEYS[1], ARGV[1]) end
elseif ARGV[1] ~= '' then
  local dead = ARGV[2] == '0' and '0' or string.format('%d', now + ARGV[2])
  redis.call('HSET', KEYS[1], ARGV[1], dead .. ' ' .. ARGV[3])
  if ARGV[4] == '0' then
    redis.call('PERSIST', KEYS[1])
  else
    redis.call('EXPIREAT', KEYS[1], ARGV[4])
  end
end
local reply = {'ok', '', '', now}
for _, value in ipairs(redis.call('HGETALL', KEYS[1])) do reply[#reply + 1] = value end
return reply
