-- create: write a filter's header whole, if there is none and block 0's ring is as the caller saw it.
--
-- KEYS[1]    HASH  the header
-- KEYS[2]    HASH  the ring of block 0, in the same hash slot
-- ARGV[1]    v of block 0's ring as the caller saw it, "" if there was none: a header is restored
--            from a ring's copy, never drawn anew while there is a ring; "*" writes it in the place
--            of whatever is there, before the rings of another filter are put in
-- ARGV[2]    Unix time in seconds at which it expires, 0 for never
-- ARGV[3..]  fields and values of the header
--
-- Reply      {"ok", v, state, now}     created
--            {"stale", v, state, now}  there is a header, or another ring: look again
-- Cost       O(1)
local now = redis.call('TIME')[1]
local ring = redis.call('HMGET', KEYS[2], 'v', 'state')
local v, state = ring[1] or '', ring[2] or ''
if ARGV[1] ~= '*' and (v ~= ARGV[1] or redis.call('EXISTS', KEYS[1]) == 1) then
  return {'stale', v, state, now}
end
-- Written before anything is deleted: a server that is out of memory refuses the first write only.
redis.call('HSET', KEYS[1], 'opened', now)
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'opened', now, unpack(ARGV, 3))
if ARGV[2] ~= '0' then redis.call('EXPIREAT', KEYS[1], ARGV[2]) end
return {'ok', v, state, now}
