-- create: write a filter's header whole, if what is there is as the caller expects it.
--
-- KEYS[1]    HASH  the header
-- KEYS[2]    HASH  the ring of block 0, in the same hash slot
-- ARGV[1]    what is expected: v of block 0's ring as the caller saw it, "" if there was none, and
--            no header: one is restored from a ring's copy, never drawn anew while there is a ring;
--            "=<token>": the unfinished header with that token; "*": anything
-- ARGV[2]    Unix time in seconds at which it expires, 0 for never
-- ARGV[3..]  fields and values of the header; without any, the one that is there is deleted. An
--            unfinished one has a token, and "begun" if rings may be replaced from now on; it keeps
--            the header before for restore.lua: "former", JSON, the Unix time in milliseconds at
--            which that expires (or less than 0), and its fields and values. One that takes the
--            place of another unfinished one keeps what that keeps, unless that has begun
--
-- Reply      {"ok", v, state, now, field, value, ...}  done; the fields of the header before
--            {"stale", v, state, now}  there is a header, or another one, or another ring
-- Cost       O(1)
local now = redis.call('TIME')[1]
local ring = redis.call('HMGET', KEYS[2], 'v', 'state')
local v, state = ring[1] or '', ring[2] or ''
local before = redis.call('HGETALL', KEYS[1])
local there, new = {}, {}
for i = 1, #before, 2 do there[before[i]] = before[i + 1] end
for i = 3, #ARGV, 2 do new[ARGV[i]] = ARGV[i + 1] end
local expected = ARGV[1] == '*'
if string.sub(ARGV[1], 1, 1) == '=' then
  expected = there.token == string.sub(ARGV[1], 2)
elseif not expected then
  expected = v == ARGV[1] and #before == 0
end
if not expected then return {'stale', v, state, now} end

local former
if new.token and not there.token then
  former = cjson.encode({redis.call('PEXPIRETIME', KEYS[1]), before})
elseif new.token and (there.token == new.token or not there.begun) then
  former = there.former
end
if #ARGV > 2 then
  -- Written before anything is deleted: a server that is out of memory refuses the first write only.
  redis.call('HSET', KEYS[1], 'opened', now)
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'opened', now, unpack(ARGV, 3))
  if former then redis.call('HSET', KEYS[1], 'former', former) end
  if ARGV[2] ~= '0' then redis.call('EXPIREAT', KEYS[1], ARGV[2]) end
else
  redis.call('DEL', KEYS[1])
end
local reply = {'ok', v, state, now}
for _, value in ipairs(before) do reply[#reply + 1] = value end
return reply
