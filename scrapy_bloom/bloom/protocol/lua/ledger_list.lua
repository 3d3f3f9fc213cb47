-- ledger_list: name a spider's chunks in a block's ledger, or all, the oldest first; changes nothing.
--
-- KEYS[1]  LIST  the block's entries, as in prelude_ledger.lua
-- KEYS[2]  ZSET  its chunks, as in ledger_pack.lua
-- ARGV[1]  tag: whose chunks; "" for all
--
-- Reply    {"ok", unpacked, "", now, member, score, ...}  unpacked is "1" if the tag has entries that
--                                                        are not packed, else "0"
-- Cost     O(chunks and entries)
local tag, unpacked = ARGV[1] ~= '' and ARGV[1] .. ' ' or '', '0'
for _, entry in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  local start = string.find(entry, ' ', 1, true)
  if start and string.sub(entry, start + 1, start + #tag) == tag then unpacked = '1' break end
end
local reply = {'ok', unpacked, '', redis.call('TIME')[1]}
local found = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #found, 2 do
  if string.sub(found[i], 1, #tag) == tag then
    reply[#reply + 1] = found[i]
    reply[#reply + 1] = found[i + 1]
  end
end
return reply
