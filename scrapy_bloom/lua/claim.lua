-- claim: test and set URLs of one block, atomically: exactly one caller gets "new" for a URL.
--
-- KEYS[1]     HASH    the block's ring
-- KEYS[2..]   STRING  bitmaps: first the layers that are written, then those that are only tested
-- ARGV[1]     v of the ring the caller worked from
-- ARGV[2]     Unix time in seconds at which the active generation ends, 0 for never
-- ARGV[3]     k, offsets per URL in a layer
-- ARGV[4]     one byte per KEYS[2..]: which k offsets of a URL are the layer's, counted from 0
--             (layers of one size share theirs)
-- ARGV[5]     per written layer: its bytes as little-endian uint32, the URLs it takes as uint64
-- ARGV[6]     offsets of all URLs, little-endian uint32, k for each size of layers
-- ARGV[7]     sizes of layers that there are offsets for
-- ARGV[8..]   per written layer: field of the ring with its count, "n:<layer>"
--
-- Reply    {"ok", verdicts}             one character per URL: "1" new, "0" seen,
--                                       "2" new but not recorded, because a written layer is full
--          {"ok", verdicts, "filling"}  the same; a written layer has passed 80% of its capacity
--          {"stale", v, state, now}     the ring is another one ("" and "" if it is gone), or its
--                                       active generation has ended; now is in Unix seconds
--          {"lost", v, "", now, "layers", names}  bitmaps are gone (evicted, deleted), have another
--                                       size, or have no count; names are separated by spaces
--          Only "ok" has changed anything.
-- Cost     O(URLs * (layers + k)): about two GETBIT per layer if there is one that is only tested (k
--          if the URL is in it), one BITFIELD per written layer (2.8 us for k = 14). The caller
--          bounds the batch.
local ring, v, k, groups, packed = KEYS[1], ARGV[1], tonumber(ARGV[3]), ARGV[4], ARGV[6]
local written = #ARGV - 7
local ends = tonumber(ARGV[2])

local current = redis.call('HMGET', ring, 'v', unpack(ARGV, 8))
if current[1] ~= v or (ends > 0 and tonumber(redis.call('TIME')[1]) >= ends) then
  current = redis.call('HMGET', ring, 'v', 'state')
  return {'stale', current[1] or '', current[2] or '', redis.call('TIME')[1]}
end

-- count[i], capacity[i], start[i]: of layer i, the number of URLs in it and that it takes, and where
-- in a URL's offsets its own begin.
local count, capacity, start = {}, {}, {}
local others = #KEYS - 1 - written
local whole = others == 0 or redis.call('EXISTS', unpack(KEYS, written + 2)) == others
for i = 1, #KEYS - 1 do
  start[i] = 4 * k * string.byte(groups, i)
  if i <= written then
    local bytes
    bytes, capacity[i] = struct.unpack('<I4I8', ARGV[5], 12 * i - 11)
    count[i] = tonumber(current[i + 1])
    whole = whole and count[i] and redis.call('STRLEN', KEYS[i + 1]) == bytes
  end
end
if not whole then
  local lost = {}
  for i = 1, #KEYS - 1 do
    local key = KEYS[i + 1]
    if redis.call('EXISTS', key) == 0 or (i <= written and (not count[i]
        or redis.call('STRLEN', key) ~= struct.unpack('<I4', ARGV[5], 12 * i - 11))) then
      lost[#lost + 1] = string.match(key, '[^:]+$')
    end
  end
  return {'lost', v, '', redis.call('TIME')[1], 'layers', table.concat(lost, ' ')}
end

-- Whether a URL, whose offsets begin after byte `at`, is in layer i. Offsets are unpacked once for
-- all layers of a size.
local call, keys, format = redis.call, KEYS, '<' .. string.rep('I4', k)
local at, unpacked = 0, {}

local function offsets_in(i)
  local offsets = unpacked[start[i]]
  if not offsets then
    offsets = {struct.unpack(format, packed, at + start[i] + 1)}
    unpacked[start[i]] = offsets
  end
  return offsets
end

local function has(i)
  local key, offsets = keys[i + 1], offsets_in(i)
  for j = 1, k do
    if call('GETBIT', key, offsets[j]) == 0 then return false end
  end
  return true
end

-- One BITFIELD command sets the k bits of a URL and returns what they were; URLs differ in the
-- offsets only.
local bitfield = {}
for i = 1, 4 * k, 4 do
  bitfield[i], bitfield[i + 1], bitfield[i + 3] = 'SET', 'u1', '1'
end

-- Records the URL in layer i; returns whether it was not in it.
local function set(i)
  local offsets = offsets_in(i)
  for j = 1, k do bitfield[4 * j - 1] = offsets[j] end
  local bits = call('BITFIELD', keys[i + 1], unpack(bitfield))
  for j = 1, k do
    if bits[j] == 0 then
      count[i] = count[i] + 1
      return true
    end
  end
  return false
end

local before, verdicts, width = {unpack(count)}, {}, 4 * k * tonumber(ARGV[7])
for url = 1, #packed / width do
  at, unpacked = (url - 1) * width, {}
  -- Most URLs that were seen were seen of late. Where there is one layer, setting is testing.
  local verdict = others > 0 and has(1) and '0' or '1'
  if verdict == '1' then
    for i = written + 1, #keys - 1 do
      if has(i) then verdict = '0' break end
    end
  end
  if verdict == '1' then
    local full = false
    for i = 1, written do full = full or count[i] >= capacity[i] end
    if full then
      -- The first written layer is tested as well; an earlier URL of this call may be in it.
      verdict = has(1) and '0' or '2'
    elseif not set(1) then
      verdict = '0'
    else
      for i = 2, written do set(i) end
    end
  end
  verdicts[url] = verdict
end

local filling = false
for i = 1, written do
  if count[i] > before[i] then
    redis.call('HSET', ring, ARGV[7 + i], count[i])
    local mark = 0.8 * capacity[i]
    filling = filling or (before[i] < mark and count[i] >= mark)
  end
end
if filling then return {'ok', table.concat(verdicts), 'filling'} end
return {'ok', table.concat(verdicts)}
