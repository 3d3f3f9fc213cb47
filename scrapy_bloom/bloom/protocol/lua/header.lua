-- header: read a filter's header, and note that it was opened.
--
-- KEYS[1]  HASH  the header
-- KEYS[2]  HASH  the ring of block 0, in the same hash slot
-- ARGV[1]  "" changes nothing; else the Unix time in seconds until which the header has to live, 0
--          for always (an end that is set is only ever put off), and the time of opening is written, so that a server
--          that refuses writes (a replica, out of memory) says so before a crawl begins
-- ARGV[2..]  names of windows whose filters belong to this one: noted as "window:<name>", so that a
--           crawl finds what was claimed there when its settings no longer have them
--
-- Reply    {"header", v, state, now, field, value, ...}  the header's fields, with block 0's ring
--          {"missing", v, state, now}                    there is no header
--          v and state are "" if there is no ring; now is the server's clock in Unix seconds
--          An error OLDSERVER with the version, from servers older than Redis 7.0: every client
--          reads the header first. Where INFO is forbidden, none is refused
-- Cost     O(1)
if not redis.REDIS_VERSION_NUM then  -- Redis 7.0 introduced it; other servers may not have it
  local info = redis.pcall('INFO', 'server')
  local version = type(info) == 'string' and string.match(info, 'redis_version:([%d.]+)') or ''
  local major = tonumber(string.match(version, '^%d+'))
  if major and major < 7 then return redis.error_reply('OLDSERVER ' .. version) end
end
local now = redis.call('TIME')[1]
local ring = redis.call('HMGET', KEYS[2], 'v', 'state')
local fields = redis.call('HGETALL', KEYS[1])
if #fields > 0 then
  for i = 2, #ARGV do redis.call('HSET', KEYS[1], 'window:' .. ARGV[i], now) end
end
local reply = {#fields > 0 and 'header' or 'missing', ring[1] or '', ring[2] or '', now}
for _, value in ipairs(fields) do reply[#reply + 1] = value end
if #fields > 0 and ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], 'opened', now)
  local time = tonumber(ARGV[1])
  if time == 0 then
    redis.call('PERSIST', KEYS[1])
  elseif time > redis.call('EXPIRETIME', KEYS[1]) then
    redis.call('EXPIREAT', KEYS[1], time)
  end
end
return reply
