-- heartbeat: note that a worker is alive, and return the workers that the caller has to know of.
--
-- KEYS[1]  ZSET  the filter's workers: member = "id description", score = Unix time in seconds from
--                which it counts as dead, 0 if it has stopped
-- KEYS[2]  STRING  nonce of the last change of the set of workers; it may be lost at any time
-- ARGV[1]  the worker's member; "" changes nothing
-- ARGV[2]  seconds until it counts as dead, 0 for a worker that has stopped
-- ARGV[3]  Unix time in seconds at which the workers expire, 0 for never
-- ARGV[4]  workers returned at most; if there are more, those returned are chosen at random
-- ARGV[5]  nonce of this call
-- ARGV[6]  nonce of the last change that the caller knows: unless there was another, only the dead
--          are returned; "" for all in any case, "*" for only the dead in any case
-- ARGV[7]  Unix time in seconds, or "+" and seconds from now: those dead by then are named
-- ARGV[8]  workers named at most
--
-- Reply    {"ok", "count nonce", "all" or "dead", now, member, until, ..., " id", until, ...}  without
--          the workers whose member is too long, which no worker has written. The named are last,
--          and are alive
-- Cost     O(workers returned), O(log workers) without any
local LONGEST = 4096
local LASTS = 3600  -- seconds
local now = redis.call('TIME')[1]
local nonce = redis.call('GET', KEYS[2])
if ARGV[1] ~= '' then
  local dead = ARGV[2] == '0' and '0' or string.format('%d', now + ARGV[2])
  local is_new = redis.call('ZADD', KEYS[1], dead, ARGV[1]) == 1
  if is_new or not nonce then
    nonce = ARGV[5]
  end
  redis.call('SET', KEYS[2], nonce, 'EX', LASTS)
  if ARGV[3] == '0' then
    redis.call('PERSIST', KEYS[1])
  else
    redis.call('EXPIREAT', KEYS[1], ARGV[3])
  end
end
local count = redis.call('ZCARD', KEYS[1])
local is_all = ARGV[6] == '' or (ARGV[6] ~= '*' and ARGV[6] ~= nonce)
local is_many = count > tonumber(ARGV[4])
local found
if not is_all then
  found = redis.call('ZRANGEBYSCORE', KEYS[1], 0, now, 'WITHSCORES', 'LIMIT', 0, ARGV[4])
elseif is_many then
  found = redis.call('ZRANDMEMBER', KEYS[1], ARGV[4], 'WITHSCORES')
else
  found = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
end
local reply = {'ok', count .. ' ' .. (nonce or ''), is_all and 'all' or 'dead', now}
for i = 1, #found, 2 do
  local member = found[i]
  if #member > LONGEST then
    if ARGV[1] ~= '' then
      redis.call('ZREM', KEYS[1], member)
    end
  else
    reply[#reply + 1] = member
    reply[#reply + 1] = found[i + 1]
  end
end
local seconds = string.match(ARGV[7], '^+(%d+)$')
local by = seconds and string.format('%d', now + seconds) or ARGV[7]
local soon = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, by, 'WITHSCORES', 'LIMIT', 0, ARGV[8])
for i = 1, #soon, 2 do
  reply[#reply + 1] = ' ' .. string.sub(string.match(soon[i], '^%S*'), 1, LONGEST)
  reply[#reply + 1] = soon[i + 1]
end
return reply
