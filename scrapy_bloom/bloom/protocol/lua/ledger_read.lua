-- ledger_read: read the first entries of one block's ledger; changes nothing.
--
-- KEYS[1]  LIST  the block's entries, as in prelude_ledger.lua
-- ARGV[1]  entries to read, at most
-- ARGV[2]  bytes of them, about: of those that are beyond, only the first is read
--
-- Reply    {"ok", count, mark, now, place, entry, ...}  how many there are; SHA-1 of the first and the
--          last that were read, for ledger_pack.lua; places count from 0
-- Cost     O(entries read)
local reply = {'ok', tostring(redis.call('LLEN', KEYS[1])), '', redis.call('TIME')[1]}
local bytes, last = 0, ''
for place = 0, ARGV[1] - 1 do
  local entry = redis.call('LINDEX', KEYS[1], place)
  if not entry or (place > 0 and bytes + #entry > tonumber(ARGV[2])) then break end
  bytes, last = bytes + #entry, redis.sha1hex(entry)
  if place == 0 then reply[3] = last end
  reply[#reply + 1] = tostring(place)
  reply[#reply + 1] = entry
end
reply[3] = reply[3] .. last
return reply
