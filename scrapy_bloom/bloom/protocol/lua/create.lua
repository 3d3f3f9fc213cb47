-- create: write a filter's header whole, unless there is one.
--
-- KEYS[1]    HASH  the header
-- KEYS[2]    HASH  the ring of block 0, in the same hash slot
-- ARGV[1]    v of block 0's ring as the caller saw it, "" if there was none: a header is restored
--            from a ring's copy, never with new seeds while there is a ring. A ring whose v begins with
--            "unfinished:" is no copy: a load is under way, and ends with this script
-- ARGV[2]    Unix time in seconds at which it expires, 0 for never
-- ARGV[3..]  fields and values of the header
--
-- Reply      {"ok", v, state, now}     done
--            {"stale", v, state, now}  there is a header, or another ring
-- Cost       O(1)
local now = redis.call('TIME')[1]
local ring = redis.call('HMGET', KEYS[2], 'v', 'state')
local v, state = ring[1] or '', ring[2] or ''
if v ~= ARGV[1] or redis.call('EXISTS', KEYS[1]) == 1 then return {'stale', v, state, now} end
redis.call('HSET', KEYS[1], 'opened', now, unpack(ARGV, 3))
if ARGV[2] ~= '0' then redis.call('EXPIREAT', KEYS[1], ARGV[2]) end
return {'ok', v, state, now}
