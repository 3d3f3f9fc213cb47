-- discard: take URLs of one block of a counting filter out of the newest layer that each is in.
--
-- KEYS[1]    HASH    the block's ring
-- KEYS[2..]  STRING  counters of all layers, the newest first
-- ARGV[1]    v of the ring the caller worked from
-- ARGV[2]    Unix time in seconds at which the active generation ends, 0 for never
-- ARGV[3]    k, offsets per URL in a layer
-- ARGV[4]    one byte per KEYS[2..]: which k offsets of a URL are the layer's, as in claim.lua
-- ARGV[5]    sizes of layers that there are offsets for
-- ARGV[6]    offsets of all URLs in counters, as in claim.lua
-- ARGV[7..]  per KEYS[2..]: field of the ring with the layer's count, "n:<layer>"
--
-- Reply    {"ok", verdicts}          one character per URL: "1" discarded (unless all its counters are
--                                    saturated: then it stays), "0" certainly not there
--          {"stale", v, state, now}  as in claim.lua
--          {"lost", v, "", now, "layers", names}  as in claim.lua
--          Only "ok" has changed anything.
-- Cost     O(URLs * layers * k): as count.lua.
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

local call, keys, format = redis.call, KEYS, '<' .. string.rep('I4', k)
local at, unpacked, get, few = 0, {}, {}, math.min(4, k)
for j = 1, k do get[3 * j - 2], get[3 * j - 1] = 'GET', 'u4' end

-- Adds the counters of a URL from number `from` to `to`, under KEYS[i], to `found`; returns whether
-- none is 0. Where they are, in bits, is in `get`.
local function read(i, offsets, from, to, found)
  for j = from, to do get[3 * j] = 4 * offsets[j] end
  for _, counter in ipairs(call('BITFIELD_RO', keys[i], unpack(get, 3 * from - 2, 3 * to))) do
    if counter == 0 then return false end
    found[#found + 1] = counter
  end
  return true
end

-- The counters of a URL, whose offsets begin after byte `at`, under KEYS[i]; nil if it is not there.
-- Offsets are unpacked once for all layers of a size.
local function counters(i)
  local group, found = string.byte(groups, i - 1), {}
  local offsets = unpacked[group] or {struct.unpack(format, packed, at + 4 * k * group + 1)}
  unpacked[group] = offsets
  -- Of an absent URL, the first four tell nearly always.
  local there = read(i, offsets, 1, few, found) and read(i, offsets, few + 1, k, found)
  return there and found or nil
end

-- Counts a URL with these counters out of the layer under KEYS[i]. How many a saturated counter
-- stands for is not known: it stays as it is. If all are, the URL stays, and so does the layer's
-- count: else the layer would take more URLs than it can.
local function decrement(i, found)
  local commands = {'OVERFLOW', 'SAT'}
  for j = 1, k do
    if found[j] < 15 then
      local n = #commands
      commands[n + 1], commands[n + 2], commands[n + 3], commands[n + 4] =
        'INCRBY', 'u4', get[3 * j], '-1'
    end
  end
  if #commands == 2 then return end
  call('BITFIELD', keys[i], unpack(commands))
  local count = tonumber(redis.call('HGET', ring, ARGV[i + 5]) or 0)
  if count > 0 then redis.call('HSET', ring, ARGV[i + 5], count - 1) end
end

local verdicts, width = {}, 4 * k * tonumber(ARGV[5])
for url = 1, #packed / width do
  at, unpacked = (url - 1) * width, {}
  verdicts[url] = '0'
  for i = 2, #keys do
    local found = counters(i)
    if found then
      decrement(i, found)
      verdicts[url] = '1'
      break
    end
  end
end
return {'ok', table.concat(verdicts)}
