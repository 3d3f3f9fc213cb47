-- count: add or claim URLs of one block of a counting filter, atomically.
--
-- KEYS[1]    HASH    the block's ring
-- KEYS[2]    STRING  counters of the layer that is written
-- KEYS[3..]  STRING  counters of the layers that are only tested
-- ARGV[1]    v of the ring the caller worked from
-- ARGV[2]    Unix time in seconds at which the active generation ends, 0 for never
-- ARGV[3]    k, offsets per URL in a layer
-- ARGV[4]    one byte per KEYS[2..]: which k offsets of a URL are the layer's, as in claim.lua
-- ARGV[5]    of the written layer: its bytes as little-endian uint32, the URLs it takes as uint64
-- ARGV[6]    offsets of all URLs in counters, as in claim.lua
-- ARGV[7]    sizes of layers that there are offsets for
-- ARGV[8]    field of the ring with the written layer's count, "n:<layer>": URLs that were added to
--            it, less those that were discarded from it
-- ARGV[9]    "claim" counts what is new; "add" counts each URL, as often as it is added
--
-- Reply    {"ok", verdicts}             one character per URL: "1" new, "0" seen, "2" new but not
--                                       recorded, "5" seen but not counted, because the layer is full
--          {"ok", verdicts, "filling"}  as in claim.lua
--          {"stale", v, state, now}     as in claim.lua
--          {"lost", v, "", now, "layers", names}  as in claim.lua
--          Only "ok" has changed anything.
-- Cost     O(URLs * layers * k): one BITFIELD of 4 counters per layer that a URL is not in, a
--          second one of the other k - 4 if it is, and one that increments k (8.7 us for k = 17).
local ring, k, groups, packed = KEYS[1], tonumber(ARGV[3]), ARGV[4], ARGV[6]
local ends, adding = tonumber(ARGV[2]), ARGV[9] == 'add'

local current = redis.call('HMGET', ring, 'v', ARGV[8])
if current[1] ~= ARGV[1] or (ends > 0 and tonumber(redis.call('TIME')[1]) >= ends) then
  current = redis.call('HMGET', ring, 'v', 'state')
  return {'stale', current[1] or '', current[2] or '', redis.call('TIME')[1]}
end

local bytes, capacity = struct.unpack('<I4I8', ARGV[5])
local count = tonumber(current[2])
local whole = count and redis.call('STRLEN', KEYS[2]) == bytes
if not whole or redis.call('EXISTS', unpack(KEYS, 2)) < #KEYS - 1 then
  local lost = {}
  for i = 2, #KEYS do
    if (i == 2 and not whole) or redis.call('EXISTS', KEYS[i]) == 0 then
      lost[#lost + 1] = string.match(KEYS[i], '[^:]+$')
    end
  end
  return {'lost', ARGV[1], '', redis.call('TIME')[1], 'layers', table.concat(lost, ' ')}
end

-- Where, in bits, the counters of a URL are, whose offsets begin after byte `at`, under KEYS[i].
-- Offsets are unpacked once for all layers of a size.
local call, keys, format = redis.call, KEYS, '<' .. string.rep('I4', k)
local at, unpacked = 0, {}

local function offsets_in(i)
  local group = string.byte(groups, i - 1)
  local offsets = unpacked[group]
  if not offsets then
    offsets = {struct.unpack(format, packed, at + 4 * k * group + 1)}
    for j = 1, k do offsets[j] = 4 * offsets[j] end
    unpacked[group] = offsets
  end
  return offsets
end

-- Commands on the k counters of a URL; URLs differ in the offsets only. Of an absent URL, the first
-- four counters tell nearly always. A saturated counter stays as it is.
local get, few, increment = {}, math.min(4, k), {'OVERFLOW', 'SAT'}
for j = 1, k do
  get[3 * j - 2], get[3 * j - 1] = 'GET', 'u4'
  increment[4 * j - 1], increment[4 * j], increment[4 * j + 2] = 'INCRBY', 'u4', '1'
end

local function has_all(key, offsets, from, to)
  for j = from, to do get[3 * j] = offsets[j] end
  for _, counter in ipairs(call('BITFIELD_RO', key, unpack(get, 3 * from - 2, 3 * to))) do
    if counter == 0 then return false end
  end
  return true
end

-- Whether the URL is in any layer from KEYS[i] on.
local function has_from(i)
  for layer = i, #keys do
    local key, offsets = keys[layer], offsets_in(layer)
    if has_all(key, offsets, 1, few) and has_all(key, offsets, few + 1, k) then return true end
  end
  return false
end

-- Counts the URL in the written layer; returns whether it was not in it.
local function set()
  local offsets, new = offsets_in(2), false
  for j = 1, k do increment[4 * j + 1] = offsets[j] end
  for _, counter in ipairs(call('BITFIELD', keys[2], unpack(increment))) do
    new = new or counter == 1
  end
  count = count + 1
  return new
end

local before, verdicts, width = count, {}, 4 * k * tonumber(ARGV[7])
for url = 1, #packed / width do
  at, unpacked = (url - 1) * width, {}
  if adding and count < capacity then
    -- Also if it seems to be there: it may not, and others would lose what is discarded for it.
    verdicts[url] = set() and not has_from(3) and '1' or '0'
  elseif has_from(2) then
    verdicts[url] = adding and '5' or '0'
  elseif count < capacity then
    set()
    verdicts[url] = '1'
  else
    verdicts[url] = '2'
  end
end

if count > before then redis.call('HSET', ring, ARGV[8], count) end
if before < 0.8 * capacity and count >= 0.8 * capacity then
  return {'ok', table.concat(verdicts), 'filling'}
end
return {'ok', table.concat(verdicts)}
