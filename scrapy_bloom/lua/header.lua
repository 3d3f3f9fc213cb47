-- header: read a filter's header, and note that it was opened.
--
-- KEYS[1]  HASH  the header
-- KEYS[2]  HASH  the ring of block 0, in the same hash slot
-- ARGV[1]  "1" writes the time of opening, so that a server that refuses writes (a replica, out of
--          memory) says so before a crawl begins; "0" changes nothing
--
-- Reply    {"header", v, state, now, field, value, ...}  the header's fields, beside block 0's ring
--          {"missing", v, state, now}                    there is no header
--          v and state are "" if there is no ring; now is the server's clock in Unix seconds
-- Cost     O(1)
local now = redis.call('TIME')[1]
local ring = redis.call('HMGET', KEYS[2], 'v', 'state')
local fields = redis.call('HGETALL', KEYS[1])
local reply = {#fields > 0 and 'header' or 'missing', ring[1] or '', ring[2] or '', now}
for _, value in ipairs(fields) do reply[#reply + 1] = value end
if #fields > 0 and ARGV[1] == '1' then redis.call('HSET', KEYS[1], 'opened', now) end
return reply
