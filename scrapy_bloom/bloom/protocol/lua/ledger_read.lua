-- ledger_read: read the first entries of one block's ledger; changes nothing.
--
-- KEYS[1]  LIST  the block's entries, as in prelude_ledger.lua
-- ARGV[1]  entries to read, at most
-- ARGV[2]  bytes of them, about: of those that are beyond, only the first is read
--
-- Reply    {"ok", count, digest, now, place, entry, ...}  how many there are; SHA-1 of those that were
--          read; places count from 0
-- Cost     O(entries read)
local reply = {'ok', tostring(redis.call('LLEN', KEYS[1])), '', redis.call('TIME')[1]}
local bytes, read = 0, {}
for place = 0, ARGV[1] - 1 do
  local entry = redis.call('LINDEX', KEYS[1], place)
  if not entry or (place > 0 and bytes + #entry > tonumber(ARGV[2])) then break end
  bytes = bytes + #entry
  read[#read + 1] = entry
  reply[#reply + 1] = tostring(place)
  reply[#reply + 1] = entry
end
reply[3] = redis.sha1hex(table.concat(read, '\n'))
return reply
