-- ledger_missing: walk over the missing pages of one block, a few at a time; changes nothing.
--
-- KEYS[1]  HASH  the block's missing pages, as in prelude_ledger.lua
-- ARGV[1]  cursor: "0" at first, then that of the last reply
-- ARGV[2]  pages to return, about
--
-- Reply    {"ok", cursor, "", now, field, value, ...}  the cursor is "0" at the end
-- Cost     O(pages returned)
local found = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local reply = {'ok', found[1], '', redis.call('TIME')[1]}
for i = 1, #found[2] do reply[i + 4] = found[2][i] end
return reply
