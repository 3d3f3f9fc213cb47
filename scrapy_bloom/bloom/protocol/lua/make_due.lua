-- make_due: let failed URLs of one block be crawled at once, as if they had not failed.
--
-- KEYS[1]    HASH  the block's claims, as in claim.lua
-- ARGV[1]    the owner of failed URLs whose requests are of use to the caller
-- ARGV[2]    takes the place of the nonce
-- ARGV[3..]  fields of the claims
--
-- Reply    {"ok", verdicts}  one character per claim: "3" it is that owner's and has its request,
--                            "0" not there, or without such a request, "4" it has not failed, and is
--                            left as it is
-- Cost     O(claims)
local now, verdicts = redis.call('TIME')[1], {}
for i = 3, #ARGV do
  local claim = redis.call('HGET', KEYS[1], ARGV[i])
  local owner, request, verdict = nil, nil, '0'
  if claim then owner, request = string.match(claim, '^(%S+) %S+ %d+ %d+ (.*)$') end
  if owner and string.sub(owner, 1, 1) ~= '-' then
    verdict = '4'
  elseif owner then
    local value = {owner, ARGV[2], now, 0, request}
    redis.call('HSET', KEYS[1], ARGV[i], table.concat(value, ' '))
    local kept = request ~= '' and string.byte(request) ~= 64  -- "@"
    if kept and owner == ARGV[1] then verdict = '3' end
  end
  verdicts[#verdicts + 1] = verdict
end
return {'ok', table.concat(verdicts)}
