-- wait: let URLs of one block wait, because they failed, or were left. A second time changes nothing.
--
-- They wait whoever has their claims: if two workers fetch a page, the one that failed may have lost
-- requests that the other took for duplicates. A claim that the server has lost is made again.
--
-- KEYS[1]   HASH  the claims, as in claim.lua
-- ARGV[1]   seconds that the claims last, 0 forever;  ARGV[2] seconds until they are due
-- ARGV[3]   who has them meanwhile: "-.args", or a worker;  ARGV[4] attempts that are added: 1 or 0
-- ARGV[5]   "1" ends claims without a request
-- ARGV[6..] per claim: field, reason, and its request, "" if the caller doesn't have it
-- Reply     {"ok", ""}
local due, has_new = string.format('%d', call('TIME')[1] + ARGV[2]), false
for i = 6, #ARGV, 3 do
  local claim, request = call('HGET', KEYS[1], ARGV[i]), ARGV[i + 2]
  local owner, attempts, stored = string.match(claim or '', '^(%S+) %S+ %d+ (%d+) (.*)$')
  if owner and stored ~= '' then request = stored end
  if owner and request == '' and ARGV[5] == '1' then
    call('HDEL', KEYS[1], ARGV[i])
  elseif owner or request ~= '' then
    local has_waited = owner and string.sub(owner, 1, 1) == '-'
    attempts = string.format('%d', (attempts or 0) + (has_waited and 0 or ARGV[4]))
    local words = {ARGV[3], ARGV[i + 1], due, attempts, request}
    call('HSET', KEYS[1], ARGV[i], table.concat(words, ' '))
    has_new = has_new or not owner
  end
end
if has_new and ARGV[1] ~= '0' then call('EXPIRE', KEYS[1], ARGV[1]) end
return {'ok', ''}
