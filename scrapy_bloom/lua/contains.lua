-- contains: test URLs of one block; changes nothing.
--
-- KEYS[1]     HASH    the block's ring
-- KEYS[2..]   STRING  bitmaps of the layers to test
-- ARGV[1]     v of the ring the caller worked from
-- ARGV[2]     Unix time in seconds at which the active generation ends, 0 for never
-- ARGV[3]     k, offsets per URL in a layer
-- ARGV[4]     one byte per KEYS[2..]: which k offsets of a URL are the layer's, as in claim.lua
-- ARGV[5]     sizes of layers that there are offsets for
-- ARGV[6]     offsets of all URLs, as in claim.lua; of a counting filter, in counters
-- ARGV[7]     bits of what the offsets count: 1, or 4 where the layers hold counters
--
-- Reply    {"ok", verdicts}          one character per URL: "1" seen, "0" certainly not
--          {"stale", v, state, now}  as in claim.lua
--          {"lost", v, "", now, "layers", names}  as in claim.lua
-- Cost     O(URLs * layers * k) at most; a URL that was not seen costs about two GETBIT a layer,
--          or one BITFIELD_RO of four counters.
local ring, k, groups, packed = KEYS[1], tonumber(ARGV[3]), ARGV[4], ARGV[6]
local ends = tonumber(ARGV[2])

local current = redis.call('HMGET', ring, 'v', 'state')
if current[1] ~= ARGV[1] or (ends > 0 and tonumber(redis.call('TIME')[1]) >= ends) then
  return {'stale', current[1] or '', current[2] or '', redis.call('TIME')[1]}
end
if redis.call('EXISTS', unpack(KEYS, 2)) < #KEYS - 1 then
  local lost = {}
  for i = 2, #KEYS do
    if redis.call('EXISTS', KEYS[i]) == 0 then lost[#lost + 1] = string.match(KEYS[i], '[^:]+$') end
  end
  return {'lost', ARGV[1], '', redis.call('TIME')[1], 'layers', table.concat(lost, ' ')}
end

-- Whether a URL, whose offsets begin after byte `at`, is in the layer under KEYS[i]. Offsets are
-- unpacked once for all layers of a size.
local call, keys, format = redis.call, KEYS, '<' .. string.rep('I4', k)
local at, unpacked = 0, {}

local function has(i)
  local key, group = keys[i], string.byte(groups, i - 1)
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
    local group = string.byte(groups, i - 1)
    local offsets = unpacked[group] or {struct.unpack(format, packed, at + 4 * k * group + 1)}
    unpacked[group] = offsets
    return has_all(keys[i], offsets, 1, few) and has_all(keys[i], offsets, few + 1, k)
  end
end

local verdicts, width = {}, 4 * k * tonumber(ARGV[5])
for url = 1, #packed / width do
  at, unpacked = (url - 1) * width, {}
  verdicts[url] = '0'
  for i = 2, #KEYS do
    if has(i) then verdicts[url] = '1' break end
  end
end
return {'ok', table.concat(verdicts)}
