-- make_due: let failed URLs of one block be crawled at once, as if they had not failed.
--
-- KEYS[1]    HASH  the block's claims, as in claim.lua
-- ARGV[1]    the owner of failed URLs whose requests are of use to the caller
-- ARGV[2]    takes the place of the nonce
-- ARGV[3..]  fields of the claims
--
-- Needs    prelude_claims.lua
-- Reply    {"ok", verdicts}  one character per claim: "3" it is that owner's and has its request,
--                            "0" not there, or without such a request, "4" it has not failed, and is
--                            left as it is
-- Cost     O(claims)
local now, verdicts = redis.call('TIME')[1], {}
for i = 3, #ARGV do
  local claim = redis.call('HGET', KEYS[1], ARGV[i])
  local owner, _, _, _, request, lines = parse(claim or '')
  local verdict = '0'
  if owner and string.sub(owner, 1, 1) ~= '-' then
    verdict = '4'
  elseif owner then
    redis.call('HSET', KEYS[1], ARGV[i], join(owner, ARGV[2], now, 0, request, lines))
    if is_kept(request) and owner == ARGV[1] then verdict = '3' end
  end
  verdicts[#verdicts + 1] = verdict
end
return {'ok', table.concat(verdicts)}
