-- recrawl: let workers crawl URLs of one block now, although they are remembered or have failed.
--
-- KEYS[1]   HASH  the claims, as in claim.lua
-- ARGV.lasts     seconds that the claims last, 0 forever
-- ARGV.replaces  "1" replaces the request of a URL that failed
-- ARGV[..] per URL: the field of its claim, and its request; "" for a URL that has to have one
--
-- Reply     {"ok", verdicts}  "1" it waits for a worker now, "2" it had failed and does, too, "3" a
--           worker has it, "0" there is no request, so the page that yields it has to find it new
local claims, now, replaces, has_new = KEYS[1], call('TIME')[1], ARGV.replaces == '1', false
local verdicts = {}
for i = NAMED + 1, #ARGV, 2 do
  local claim, request, verdict = call('HGET', claims, ARGV[i]), ARGV[i + 1], '1'
  local owner, reason, stored = string.match(claim or '', '^(%S+) (%S+) %d+ %d+ (.*)$')
  if owner and string.sub(owner, 1, 1) ~= '-' then
    verdict = '3'
  elseif owner then
    verdict = '2'
    if stored ~= '' and (request == '' or not replaces) then request = stored end
  end
  if verdict ~= '3' and request == '' then
    verdict = '0'
    call('HDEL', claims, ARGV[i])
  elseif verdict ~= '3' then
    call('HSET', claims, ARGV[i], table.concat({owner or '-', reason or 'recrawl', now, 0, request}, ' '))
    has_new = true
  end
  verdicts[#verdicts + 1] = verdict
end
if has_new then prolong(claims, ARGV.lasts) end
return {'ok', table.concat(verdicts)}
