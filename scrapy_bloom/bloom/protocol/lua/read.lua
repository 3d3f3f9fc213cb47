-- read: a block's ring and its counts; changes nothing.
--
-- KEYS[1]  HASH  the block's ring
-- KEYS[2]  HASH  the block's claims
--
-- Reply    {"ok", v, state, now, field, value, ...}  v and state are "" if there is no ring; then
--          the ring's other fields: "n:<layer>" = URLs recorded in that layer; and "claims" = the
--          number of claims
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
return reply
