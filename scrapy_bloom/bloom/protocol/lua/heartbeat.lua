-- heartbeat: note that a worker is alive, and return the workers.
--
-- KEYS[1]  HASH  the filter's workers: field = the worker's id, value = "until description"
-- ARGV[1]  id of the worker; "" changes nothing
-- ARGV[2]  seconds until it counts as dead, 0 for a worker that has stopped
-- ARGV[3]  its description, JSON
-- ARGV[4]  Unix time in seconds at which the workers expire, 0 for never
-- ARGV[5]  workers returned at most; if there are more, those returned are chosen at random
--
-- Reply    {"ok", number of all workers, "", now, id, "until description", ...}  without the workers
--          whose id or entry is too long, which no worker has written
-- Cost     O(workers returned)
local LONGEST = 4096
local now = redis.call('TIME')[1]
if ARGV[1] ~= '' then
  local dead = ARGV[2] == '0' and '0' or string.format('%d', now + ARGV[2])
  redis.call('HSET', KEYS[1], ARGV[1], dead .. ' ' .. ARGV[3])
  if ARGV[4] == '0' then
    redis.call('PERSIST', KEYS[1])
  else
    redis.call('EXPIREAT', KEYS[1], ARGV[4])
  end
end
local count = redis.call('HLEN', KEYS[1])
local found
if count <= tonumber(ARGV[5]) then
  found = redis.call('HGETALL', KEYS[1])
else
  found = redis.call('HRANDFIELD', KEYS[1], ARGV[5], 'WITHVALUES')
end
local reply = {'ok', count .. '', '', now}
for i = 1, #found, 2 do
  if #found[i] + #found[i + 1] <= LONGEST then
    reply[#reply + 1] = found[i]
    reply[#reply + 1] = found[i + 1]
  elseif ARGV[1] ~= '' then
    redis.call('HDEL', KEYS[1], found[i])
  end
end
return reply
