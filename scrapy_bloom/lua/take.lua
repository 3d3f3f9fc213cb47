-- take: claim URLs of one block without recording them: exactly one caller gets each.
--
-- KEYS[1]     HASH    the block's ring
-- KEYS[2]     HASH    the block's claims: field = fingerprint, value = "owner nonce time attempt request"
-- KEYS[3..]   STRING  bitmaps of the layers to test; none, to take the URLs untested
-- ARGV[1]     v of the ring the caller worked from
-- ARGV[2]     Unix time in seconds at which the active generation ends, 0 for never
-- ARGV[3]     k, offsets per URL in a layer
-- ARGV[4]     one byte per KEYS[3..]: which k offsets of a URL are the layer's, as in claim.lua
-- ARGV[5]     sizes of layers that there are offsets for
-- ARGV[6]     offsets of all URLs, as in claim.lua; of a counting filter, in counters
-- ARGV[7]     bits of what the offsets count: 1, or 4 where the layers hold counters
-- ARGV[8]     Unix time in seconds at which the claims expire, 0 for never
-- ARGV[9]     owner of the claims
-- ARGV[10]    nonce of this call: repeated with the same one, it gives the same answers
-- ARGV[11]    bytes that the block's claims take at most; beyond, they are made without their
--             requests. 0 for no limit
-- ARGV[12..]  per URL: field of the claim, and the request as JSON, "" if it is not kept
--
-- Reply    {"ok", verdicts}          one character per URL: "1" the caller's now, "6" the caller's now
--                                    without its request, for which there is no room, "0" recorded
--                                    in a bitmap, "3" the owner's already, "7" the same without its
--                                    request, "4" another owner's, or one that failed and is not
--                                    due yet
--          {"stale", v, state, now}  as in claim.lua
--          {"lost", v, "", now, "layers", names}  as in claim.lua
-- Cost     O(URLs * layers * k) at most; a new URL costs about two GETBIT a layer (or one
--          BITFIELD_RO of four counters), HGET and HSET. With a limit that many claims could pass,
--          MEMORY USAGE of 50 of them, once.
local ring, claims, k, groups, packed = KEYS[1], KEYS[2], tonumber(ARGV[3]), ARGV[4], ARGV[6]
local ends, now = tonumber(ARGV[2]), redis.call('TIME')[1]

local current = redis.call('HMGET', ring, 'v', 'state')
if current[1] ~= ARGV[1] or (ends > 0 and tonumber(now) >= ends) then
  return {'stale', current[1] or '', current[2] or '', now}
end
if #KEYS > 2 and redis.call('EXISTS', unpack(KEYS, 3)) < #KEYS - 2 then
  local lost = {}
  for i = 3, #KEYS do
    if redis.call('EXISTS', KEYS[i]) == 0 then lost[#lost + 1] = string.match(KEYS[i], '[^:]+$') end
  end
  return {'lost', ARGV[1], '', now, 'layers', table.concat(lost, ' ')}
end

-- Whether a URL, whose offsets begin after byte `at`, is in the layer under KEYS[i]. Offsets are
-- unpacked once for all layers of a size.
local call, keys, format = redis.call, KEYS, '<' .. string.rep('I4', k)
local at, unpacked = 0, {}

local function has(i)
  local key, group = keys[i], string.byte(groups, i - 2)
  local offsets = unpacked[group]
  if not offsets then
    offsets = {struct.unpack(format, packed, at + 4 * k * group + 1)}
    unpacked[group] = offsets
  end
  for j = 1, k do
    if call('GETBIT', key, offsets[j]) == 0 then return false end
  end
  return true
end

if ARGV[7] == '4' then
  -- The same of counters. Of an absent URL, the first four tell nearly always.
  local get, few = {}, math.min(4, k)
  for j = 1, k do get[3 * j - 2], get[3 * j - 1] = 'GET', 'u4' end

  local function has_all(key, offsets, from, to)
    for j = from, to do get[3 * j] = 4 * offsets[j] end
    for _, counter in ipairs(call('BITFIELD_RO', key, unpack(get, 3 * from - 2, 3 * to))) do
      if counter == 0 then return false end
    end
    return true
  end

  has = function(i)
    local group = string.byte(groups, i - 2)
    local offsets = unpacked[group] or {struct.unpack(format, packed, at + 4 * k * group + 1)}
    unpacked[group] = offsets
    return has_all(keys[i], offsets, 1, few) and has_all(keys[i], offsets, few + 1, k)
  end
end

-- What is to be said of a URL with a claim; '1' and the attempts so far, if it may be taken.
local function judge(claim)
  local owner, nonce, time, attempt, request = string.match(claim, '^(%S+) (%S+) (%d+) (%d+) (.?)')
  if not owner then return '1', 0 end  -- not ours to read: damaged
  if string.sub(owner, 1, 1) == '-' then
    return tonumber(time) <= tonumber(now) and '1' or '4', attempt
  end
  if owner ~= ARGV[9] then return '4' end
  if nonce == ARGV[10] then return '1', attempt end
  return request == '' and '7' or '3'
end

-- Bytes that the claims take, estimated from a few of them; measured when it is first needed. A user
-- who may not call MEMORY has no limit.
local LARGEST = 70000  -- bytes of a claim and its request, at most
local room, used = tonumber(ARGV[11]), nil
local function has_room_for(request)
  if room == 0 or request == '' then return true end
  if not used then
    used = redis.call('HLEN', claims) * LARGEST
    if used > room then used = redis.pcall('MEMORY', 'USAGE', claims, 'SAMPLES', 50) end
    if type(used) ~= 'number' then used = 0 end
  end
  used = used + #request
  return used <= room
end

local verdicts, width, taken = {}, 4 * k * tonumber(ARGV[5]), {}
for url = 1, (#ARGV - 11) / 2 do
  local field, request = ARGV[10 + 2 * url], ARGV[11 + 2 * url]
  local verdict, attempt = '1', 0
  at, unpacked = (url - 1) * width, {}
  for i = 3, #KEYS do
    if has(i) then verdict = '0' break end
  end
  if verdict == '1' then
    local claim = redis.call('HGET', claims, field)
    if claim then verdict, attempt = judge(claim) end
    -- Twice in one call: its nonce does not tell them apart.
    if taken[field] then verdict = '3' end
  end
  if verdict == '1' then
    if not has_room_for(request) then request, verdict = '', '6' end
    local value = {ARGV[9], ARGV[10], now, attempt, request}
    redis.call('HSET', claims, field, table.concat(value, ' '))
    taken[field] = true
  end
  verdicts[url] = verdict
end
if next(taken) then
  local expiry = tonumber(ARGV[8])
  if expiry == 0 then
    redis.call('PERSIST', claims)
  elseif redis.call('EXPIRETIME', claims) ~= expiry then
    redis.call('EXPIREAT', claims, expiry)
  end
end
return {'ok', table.concat(verdicts)}
