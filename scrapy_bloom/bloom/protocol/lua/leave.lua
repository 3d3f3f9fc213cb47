-- leave: free the claims of one block that nobody will end: any link gets them, or a later run.
-- KEYS[1]   HASH  the claims, as in claim.lua
-- ARGV[..] per claim: field, and its owner. Without a request it ends, or with one that is too long.
-- Reply     {"ok", verdicts}  "1" it waits now, "2" it has ended, "0" it has another owner
local MAX_LENGTH, now, verdicts = 65536, call('TIME')[1], {}
for i = NAMED + 1, #ARGV, 2 do
  local claim, verdict = call('HGET', KEYS[1], ARGV[i]), '0'
  local owner, others, attempts, request =
    string.match(claim or '', '^(%S+) [^%s:]*(%S*) %d+ (%d+) (.*)$')
  if owner == ARGV[i + 1] and (request == '' or #request > MAX_LENGTH) then
    verdict = '2'
    call('HDEL', KEYS[1], ARGV[i])
  elseif owner == ARGV[i + 1] then
    verdict = '1'
    local mine = '-' .. (string.match(owner, '%..*') or '')
    if others ~= '' and others ~= ':' .. mine then mine = '-' end
    local words = {mine, 'left', now, attempts, request}
    call('HSET', KEYS[1], ARGV[i], table.concat(words, ' '))
  end
  verdicts[#verdicts + 1] = verdict
end
return {'ok', table.concat(verdicts)}
