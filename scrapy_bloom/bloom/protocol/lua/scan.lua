-- scan: walk over the claims of one block, a few at a time; changes nothing.
--
-- KEYS[1]  HASH  the block's claims, as in claim.lua
-- ARGV[1]  cursor: "0" at first, then that of the last reply
-- ARGV[2]  claims to return, about
-- ARGV[3]  tag of a spider: of the claims of others, only those are told that have a line of it
--          (prelude_claims.lua), with the length of the request there; "" for all claims
--
-- Needs    prelude_claims.lua
-- Reply    {"ok", cursor, "", now, field, "owner nonce time attempt length", ...}  the cursor is "0"
--          at the end; length is that of the request, 0 if it is not kept. Of a claim that is there
--          all the while, one reply tells at least. Fields that are too long, which no client has
--          written, are left out
-- Cost     O(claims returned); a hash of at most 512 short entries is returned at once
local LONGEST = 4096  -- characters of a field, and of a claim without its request
local found = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local reply = {'ok', found[1], '', redis.call('TIME')[1]}
for i = 1, #found[2], 2 do
  local claim = found[2][i + 1]
  -- Where the request begins, not the request: it may be long.
  local head, page, start = string.match(claim, '^(%S+ %S+ %d+ %d+) (@?)()')
  local is_readable = head and #head <= LONGEST
  local length, is_told = 0, #found[2][i] <= LONGEST
  if is_readable and ARGV[3] ~= '' and tag_of(head) ~= ARGV[3] then
    local own = take(claim, ARGV[3])
    length, is_told = own and is_kept(own) and #own or 0, is_told and own
  elseif head and page ~= '@' then
    length = (string.find(claim, '\n', start, true) or #claim + 1) - start
  end
  if is_told then
    reply[#reply + 1] = found[2][i]
    reply[#reply + 1] = is_readable and head .. ' ' .. length or ''
  end
end
return reply
