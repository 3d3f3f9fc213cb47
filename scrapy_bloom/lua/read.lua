-- read: a block's ring and its counts; changes nothing.
--
-- KEYS[1]    HASH  the block's ring
-- KEYS[2]    HASH  the block's claims
-- KEYS[3..]  HASH  exact records of its generations, if it is to be told which are lost
-- ARGV[..]   names of these records
--
-- Reply    {"ok", v, state, now, field, value, ...}  v and state are "" if there is no ring; then
--          the ring's other fields: "n:<layer>" = URLs recorded in that layer; and "claims" = the
--          number of claims; and "lost:<record>" for those that have lost something, as in audit.lua
-- Cost     O(layers)
local reply = {'ok', '', '', redis.call('TIME')[1], 'claims', redis.call('HLEN', KEYS[2])}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i] == 'v' then
    reply[2] = fields[i + 1]
  elseif fields[i] == 'state' then
    reply[3] = fields[i + 1]
  else
    reply[#reply + 1] = fields[i]
    reply[#reply + 1] = fields[i + 1]
  end
end
for i = 3, #KEYS do
  local count = tonumber(redis.call('HGET', KEYS[1], 'n:' .. ARGV[i - 2]) or 0)
  -- What is no hash is an error, and no number.
  if redis.pcall('HLEN', KEYS[i]) ~= count then
    reply[#reply + 1] = 'lost:' .. ARGV[i - 2]
    reply[#reply + 1] = '1'
  end
end
return reply
