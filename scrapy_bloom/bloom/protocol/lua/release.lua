-- release: end claims of one block.
--
-- KEYS[1]    HASH  the block's claims, as in claim.lua
-- ARGV[1]    owner whose claims to end; "" for any
-- ARGV[2]    "" deletes the claims; else the URLs failed: this becomes their owner, until they are
--            due again
-- ARGV[3]    seconds until they are due again
-- ARGV[4]    attempts after which a URL's request is no longer kept
-- ARGV[5..]  per claim: its field, and why its URL failed, which is kept in the place of the nonce;
--            "" leaves what is there
--
-- Reply    {"ok", verdicts}  one character per claim: "1" ended, "0" not there, or another owner's
-- Cost     O(claims)
local verdicts = {}
for i = 5, #ARGV, 2 do
  local claim = redis.call('HGET', KEYS[1], ARGV[i])
  local owner, nonce, _, attempt, request
  if claim then
    owner, nonce, _, attempt, request = string.match(claim, '^(%S+) (%S+) (%d+) (%d+) (.*)$')
  end
  local mine = claim and (ARGV[1] == '' or owner == ARGV[1])
  if mine and (ARGV[2] == '' or not owner) then
    redis.call('HDEL', KEYS[1], ARGV[i])
  elseif mine then
    attempt = attempt + 1
    if attempt >= tonumber(ARGV[4]) then request = '' end
    local due = redis.call('TIME')[1] + ARGV[3]
    if ARGV[i + 1] ~= '' then nonce = ARGV[i + 1] end
    local value = {ARGV[2], nonce, string.format('%d', due), attempt, request}
    redis.call('HSET', KEYS[1], ARGV[i], table.concat(value, ' '))
  end
  verdicts[#verdicts + 1] = mine and '1' or '0'
end
return {'ok', table.concat(verdicts)}
