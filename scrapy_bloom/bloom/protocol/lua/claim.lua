-- claim: claim URLs of one block without recording them: exactly one caller gets each.
--
-- KEYS[1]     HASH    the block's ring
-- KEYS[2..]   STRING  bitmaps of the layers to test; none, to take the URLs untested
-- KEYS[..]    HASH    the block's claims: field = fingerprint, value as in prelude_claims.lua;
--                     if a URL failed, why stands in the place of the nonce (release.lua), after a
--                     "~" if it does not hide the URL until it is due;
--                     if the request is not kept, "@" and the field of the page that yielded it, or
--                     nothing, in its place
-- ARGV[1..7]  the ring, and offsets of URLs in its layers, as in prelude_layers.lua
-- ARGV[8]     "": none is written
-- ARGV[9]     Unix time in seconds at which the claims expire, 0 for never
-- ARGV[10]    owner of the claims
-- ARGV[11]    nonce of this call: repeated with the same one, it gives the same answers
-- ARGV[12]    bytes that the block's claims take at most; beyond, they are made without their
--             requests. 0 for no limit
-- ARGV[13]    seconds that a failed URL waits, 0 if that is not known: one that is due later than that
--             failed while the clock was ahead, and is due
-- ARGV[14..]  per URL: field of the claim, that of the page that yielded it, "" for none, and the
--             request as JSON, "" if it is not kept
--
-- Needs    prelude_layers.lua, prelude_rights.lua and prelude_claims.lua
-- Reply    {"ok", verdicts}          one character per URL: "1" the caller's now, "6" the caller's now
--                                    without its request, for which there is no room, "0" recorded
--                                    in a bitmap, "3" the owner's already, "7" the same without its
--                                    request, "4" another owner's, or one that failed and is not
--                                    due yet, "a" the same without its request, "b" another
--                                    spider's: the request is kept with its claim, "9" the page has
--                                    to yield it again: it is claimed for the same page without its
--                                    request, or by another spider, and this request is not kept
--          "stale" and "lost" as in prelude_ring.lua
-- Cost     O(URLs * layers * k) at most, as in prelude_layers.lua; a new URL costs HGET and HSET
--          in addition. With a limit that many claims could pass, MEMORY USAGE of 50 of them, once.
local claims, now, cooldown = KEYS[#KEYS], now or call('TIME')[1], tonumber(ARGV[13])

-- Returns the verdict on a URL with a claim; if it may be claimed, '1', the attempts so far, the
-- further lines of the claim, and the request of a failed URL: if the caller's is not kept, this one
-- is. Else it would be lost with the caller, and the page that yielded it may be recorded by now.
local function judge(claim, page)
  local owner, nonce, time, attempt, request, lines = parse(claim)
  if not owner then return '1', 0, '' end  -- not ours to read: damaged
  local failed, kept = string.sub(owner, 1, 1) == '-', is_kept(request)
  local waits = failed and time - now
  local is_near = failed and waits > 0 and (cooldown == 0 or waits <= cooldown)
  if failed and not (is_near and string.byte(nonce) ~= 126) then  -- "~"
    local own, others = pass_on(owner, ARGV[10], request, lines)
    return '1', attempt, others, own and is_kept(own) and own
  end
  if owner == ARGV[10] and nonce == ARGV[11] then return '1', attempt, lines end
  if tag_of(owner) ~= tag_of(ARGV[10]) then return 'b' end
  if not kept and page ~= '' and string.sub(request, 2) == page then return '9' end
  if owner ~= ARGV[10] then return kept and '4' or 'a' end
  return kept and '3' or '7'
end

-- Returns the verdict on a URL of another spider's, and what its claim becomes, nil for no change.
local function add_line(claim, tag, request, page)
  local own, others = take(claim, tag)
  if own and is_kept(own) then return 'b' end
  local line = '\n' .. tag .. ' '
  if request ~= '' then return 'b', others .. line .. request end
  return '9', not own and claim .. line .. '@' .. page
end

-- Bytes that the claims take, estimated from a few of them where all of them might take too many;
-- measured when it is first needed. A user who may not call MEMORY has no limit.
local LARGEST = 70000  -- bytes of a claim and its request, at most
local urls, room, used = (#ARGV - 13) / 3, tonumber(ARGV[12]), nil
local function has_room_for(request)
  if room == 0 or request == '' then return true end
  if not used then
    local most = (redis.call('HLEN', claims) + urls) * LARGEST
    used = most > room and redis.pcall('MEMORY', 'USAGE', claims, 'SAMPLES', 50)
    if type(used) ~= 'number' then used = 0 end
  end
  used = used + #request
  return used <= room
end

local expiry = tonumber(ARGV[9])
check_rights(unpack(expiry == 0 and {'PERSIST'} or {'EXPIREAT', 'EXPIRETIME'}))
local verdicts, taken = {}, {}
for url = 1, urls do
  local field, page, request = ARGV[11 + 3 * url], ARGV[12 + 3 * url], ARGV[13 + 3 * url]
  local verdict, attempt, lines, stored = '1', 0, '', nil
  at, unpacked = (url - 1) * width, {}
  for i = 1, layers do
    if has(i) then verdict = '0' break end
  end
  if verdict == '1' then
    local claim = redis.call('HGET', claims, field)
    if claim then verdict, attempt, lines, stored = judge(claim, page) end
    -- Twice in one call: its nonce does not tell them apart.
    if taken[field] then verdict = '3' end
    if verdict == 'b' then
      local fits = has_room_for(request)
      verdict, claim = add_line(claim, tag_of(ARGV[10]), fits and request or '', page)
      if claim then redis.call('HSET', claims, field, claim) end
    end
  end
  if verdict == '1' then
    if not has_room_for(request) then request, verdict = '', '6' end
    if request == '' then request = stored or (page ~= '' and '@' .. page or '') end
    redis.call('HSET', claims, field, join(ARGV[10], ARGV[11], now, attempt, request, lines))
    taken[field] = true
  end
  verdicts[url] = verdict
end
if next(taken) then
  if expiry == 0 then
    redis.call('PERSIST', claims)
  elseif redis.call('EXPIRETIME', claims) ~= expiry then
    redis.call('EXPIREAT', claims, expiry)
  end
end
return {'ok', table.concat(verdicts)}
