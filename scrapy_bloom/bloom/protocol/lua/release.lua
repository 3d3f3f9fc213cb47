-- release: end claims of one block.
--
-- KEYS[1]    HASH  the block's claims, as in claim.lua
-- ARGV[1]    owner whose claims to end; "" for any
-- ARGV[2]    "" deletes the claims, or leaves them to another spider that has a request there, at once;
--            else the URLs failed: this becomes their owner, until they are
--            due again
-- ARGV[3]    seconds until they are due again
-- ARGV[4]    attempts after which a URL's request is no longer kept
-- ARGV[5..]  per claim: its field, and why its URL failed, which is kept in the place of the nonce;
--            "" leaves what is there
--
-- Needs    prelude_claims.lua
-- Reply    {"ok", verdicts}  one character per claim: "1" ended, "0" not there, or another owner's
-- Cost     O(claims)
local verdicts = {}
for i = 5, #ARGV, 2 do
  local claim = redis.call('HGET', KEYS[1], ARGV[i])
  local owner, nonce, _, attempt, request, lines = parse(claim or '')
  local mine = claim and (ARGV[1] == '' or owner == ARGV[1])
  local tag, next_request, others = string.match(lines or '', '^.(%S+) ([^\n]*)(.*)$')
  if mine and ARGV[1] ~= '' and ARGV[2] == '' and tag then
    local now = redis.call('TIME')[1]
    redis.call('HSET', KEYS[1], ARGV[i], join('-' .. tag, nonce, now, 0, next_request, others))
  elseif mine and (ARGV[2] == '' or not owner) then
    redis.call('HDEL', KEYS[1], ARGV[i])
  elseif mine then
    attempt = attempt + 1
    if attempt >= tonumber(ARGV[4]) then request = '' end
    local due = redis.call('TIME')[1] + ARGV[3]
    if ARGV[i + 1] ~= '' then nonce = ARGV[i + 1] end
    due = string.format('%d', due)
    redis.call('HSET', KEYS[1], ARGV[i], join(ARGV[2], nonce, due, attempt, request, lines))
  end
  verdicts[#verdicts + 1] = mine and '1' or '0'
end
return {'ok', table.concat(verdicts)}
