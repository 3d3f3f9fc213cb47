-- ledger_add: keep the requests of pages of one block that have failed, and note that they are missing.
--
-- KEYS[1]    HASH  the block's claims, as in claim.lua
-- KEYS[2]    LIST  its entries, KEYS[3] HASH its missing pages, as in prelude_ledger.lua
-- ARGV[1]    owners whose claims count: " a b "
-- ARGV[2..]  per page the field of its claim; then the arguments of prelude_ledger.lua
--
-- Needs    prelude_ledger.lua
-- Reply    {"ok", verdicts}  one character per page: "1" kept, "0" not: these owners do not claim it,
--                            or see prelude_ledger.lua
-- Cost     O(pages)
local verdicts = {}
for i = 2, #ARGV do
  local owner = string.match(redis.call('HGET', KEYS[1], ARGV[i]) or '', '^%S+ ')
  local is_own = owner and string.find(ARGV[1], ' ' .. owner, 1, true)
  verdicts[i - 1] = is_own and keep(ARGV[i], i - 1) and '1' or '0'
end
return {'ok', table.concat(verdicts)}
