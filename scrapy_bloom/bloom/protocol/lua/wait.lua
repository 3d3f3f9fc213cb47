-- wait: let URLs of one block wait, because they failed, or were left. A second time changes nothing.
--
-- They wait whoever has their claims: if two workers fetch a page, the one that failed may have lost
-- requests that the other took for duplicates. A claim that the server has lost is made again.
--
-- KEYS[1]   HASH  the claims, as in claim.lua
-- ARGV.lasts     seconds that the claims last, 0 forever
-- ARGV.seconds   until they are due
-- ARGV.owner     who has them meanwhile: "-.args", or a worker. It's "-" if they are for others, too
-- ARGV.attempts  that are added: 1 or 0
-- ARGV.ends      "1" ends claims without a request
-- ARGV[..] per claim: field, reason, and its request, "" if the caller doesn't have it
-- Reply     {"ok", ""}
local due, has_new = string.format('%d', call('TIME')[1] + ARGV.seconds), false
for i = NAMED + 1, #ARGV, 3 do
  local claim, request = call('HGET', KEYS[1], ARGV[i]), ARGV[i + 2]
  local owner, others, attempts, stored =
    string.match(claim or '', '^(%S+) [^%s:]*(%S*) %d+ (%d+) (.*)$')
  if owner and stored ~= '' then request = stored end
  if owner and request == '' and ARGV.ends == '1' then
    call('HDEL', KEYS[1], ARGV[i])
  elseif owner or request ~= '' then
    local has_waited = owner and string.sub(owner, 1, 1) == '-'
    attempts = string.format('%d', (attempts or 0) + (has_waited and 0 or ARGV.attempts))
    if has_waited then others = ':' .. owner end
    local is_shared = (others or '') ~= '' and others ~= ':' .. ARGV.owner
    local mine = is_shared and string.sub(ARGV.owner, 1, 1) == '-' and '-' or ARGV.owner
    local words = {mine, ARGV[i + 1], due, attempts, request}
    call('HSET', KEYS[1], ARGV[i], table.concat(words, ' '))
    has_new = has_new or not owner
  end
end
if has_new then prolong(KEYS[1], ARGV.lasts) end
return {'ok', ''}
