-- begin_look: decide whether a worker looks at all claims, so that many workers share the looks.
--
-- KEYS[1]  HASH  group -> "begun done clean", in Unix milliseconds: when the last look of its workers
--                began, and that of the last one that is done, and that of the last one that has
--                found nothing. It may be lost at any time
-- ARGV[1]  the worker's group: they look for the same claims
-- ARGV[2]  a look that began after this moment, in Unix milliseconds, will do; 0 for none that began
--          before this call
-- ARGV[3]  "1" if only a look will do that has found nothing
-- ARGV[4]  milliseconds between the beginnings of two looks at least
--
-- Reply    {"ok", milliseconds now, "look", "done" or "wait", now}  look now; another worker has; or
--          another worker may be looking
-- Cost     O(1)
local LASTS = 3600  -- seconds
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local looks = redis.call('HGET', KEYS[1], ARGV[1])
local begun, done, clean = string.match(looks or '', '^(%d+) (%d+) (%d+)$')
if not begun or tonumber(begun) > now then  -- the clock has gone back
  begun, done, clean = 0, 0, 0
end
local since, last = tonumber(ARGV[2]), tonumber(ARGV[3] == '1' and clean or done)
local answer = 'wait'
if since > 0 and last > since then
  answer = 'done'
elseif now - begun >= tonumber(ARGV[4]) then
  answer = 'look'
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%d %d %d', now, done, clean))
  redis.call('EXPIRE', KEYS[1], LASTS)
end
return {'ok', string.format('%d', now), answer, time[1]}
