-- reassign: take over claims of one block from their owner.
--
-- KEYS[1]    HASH  the block's claims, as in claim.lua
-- ARGV[1]    the owner they are taken from; "" for any owner. Claims that failed have an
--            owner too, and are only given away when they are due; not with ""
-- ARGV[2]    the owner they go to
-- ARGV[3]    nonce of this call
-- ARGV[4]    "1" to be told the requests
-- ARGV[5]    seconds that a failed URL waits, as in claim.lua
-- ARGV[6..]  fields of the claims
--
-- Reply    {"ok", "", "", now, field, request, ...}  what was taken over; the request is "" if it
--          was not asked for, or not kept
-- Cost     O(claims), and the size of the requests
local now, cooldown = redis.call('TIME')[1], tonumber(ARGV[5])
local reply = {'ok', '', '', now}
for i = 6, #ARGV do
  local claim = redis.call('HGET', KEYS[1], ARGV[i])
  local owner, time, attempt, request
  if claim then
    owner, time, attempt, request = string.match(claim, '^(%S+) %S+ (%d+) (%d+) (.*)$')
  end
  local failed = owner and string.sub(owner, 1, 1) == '-'
  local given = owner and (owner == ARGV[1] or (ARGV[1] == '' and not failed))
  local waits = failed and time - now or 0
  if given and (waits <= 0 or (cooldown > 0 and waits > cooldown)) then
    local value = {ARGV[2], ARGV[3], now, attempt, request}
    redis.call('HSET', KEYS[1], ARGV[i], table.concat(value, ' '))
    reply[#reply + 1] = ARGV[i]
    reply[#reply + 1] = ARGV[4] == '1' and request or ''
  end
end
return reply
