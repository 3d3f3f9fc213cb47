-- prelude_layers: how scripts look URLs of one block up in its layers.
--
-- It stands before the text of scripts that name it as what they need. They go on only if the ring is
-- the caller's and all layers are there. Each function costs a call 0.1 us: so these are few.
--
-- KEYS[1]    HASH    the block's ring
-- KEYS[2..]  STRING  bitmaps of layers: first those that are written, then those that are only tested
-- ARGV[1]    v of the ring the caller works from
-- ARGV[2]    Unix time in seconds at which the active generation ends, 0 for never
-- ARGV[3]    k, offsets per URL in a layer
-- ARGV[4]    one byte per layer: which k offsets of a URL are the layer's, counted from 0 (layers of
--            one size share theirs)
-- ARGV[5]    sizes of layers that there are offsets for
-- ARGV[6]    offsets of all URLs, little-endian uint32, k for each size of layers; of a counting
--            filter, in counters
-- ARGV[7]    bits of what the offsets count: 1, or 4 where the layers hold counters
-- ARGV[8]    per written layer: its bytes as little-endian uint32, the URLs it takes as uint64
-- ARGV[9..]  per written layer: field of the ring with its count, "n:<layer>"
--
-- Reply    "stale" and "lost" as in prelude_ring.lua
-- Cost     per URL and layer about two GETBIT if the URL is not there, k if it is; or one BITFIELD_RO
--          of four counters, and a second one of the others if it is there
local ring, call, keys, k, packed = KEYS[1], redis.call, KEYS, tonumber(ARGV[3]), ARGV[6]
local groups, layers, bits = {string.byte(ARGV[4], 1, -1)}, #ARGV[4], tonumber(ARGV[7])

local ends, written = tonumber(ARGV[2]), #ARGV[8] / 12
local now = ends > 0 and call('TIME')[1]
local current = call('HMGET', ring, 'v', unpack(ARGV, 9, 8 + written))
if current[1] ~= ARGV[1] or (now and tonumber(now) >= ends) then
  current = call('HMGET', ring, 'v', 'state')
  return {'stale', current[1] or '', current[2] or '', call('TIME')[1]}
end

-- Of the layers that are written: bytes, URLs that they take, and URLs in them.
local sizes, capacity, count
local others, whole = layers - written, true
if written > 0 then sizes, capacity, count = {}, {}, {} end
for i = 1, written do
  sizes[i], capacity[i] = struct.unpack('<I4I8', ARGV[8], 12 * i - 11)
  count[i] = tonumber(current[i + 1])
  whole = whole and count[i] and call('STRLEN', keys[i + 1]) == sizes[i]
end
whole = whole and (others == 0 or call('EXISTS', unpack(keys, written + 2, layers + 1)) == others)
if not whole then
  local gone = {}
  for i = 1, layers do
    local key = keys[i + 1]
    local there = call('EXISTS', key) == 1
    if i <= written then there = count[i] and call('STRLEN', key) == sizes[i] end
    if not there then gone[#gone + 1] = string.match(key, '[^:]+$') end
  end
  return {'lost', ARGV[1], '', call('TIME')[1], 'layers', table.concat(gone, ' ')}
end

-- Bytes of a URL's offsets, where they begin (after byte `at`), and those of it that are unpacked: once
-- for all layers of a size.
local width, format = 4 * k * tonumber(ARGV[5]), '<' .. string.rep('I4', k)
local at, unpacked = 0, {}

-- Where in layer i the URL's bits or counters are, in bits.
local function offsets_in(i)
  local group = groups[i]
  local offsets = unpacked[group]
  if not offsets then
    offsets = {struct.unpack(format, packed, at + 4 * k * group + 1)}
    if bits > 1 then
      for j = 1, k do offsets[j] = bits * offsets[j] end
    end
    unpacked[group] = offsets
  end
  return offsets
end

-- Whether the URL is in layer i. Its counters, if it is, are appended to `found`, if that is given.
local function has(i)
  local key, offsets = keys[i + 1], offsets_in(i)
  for j = 1, k do
    if call('GETBIT', key, offsets[j]) == 0 then return false end
  end
  return true
end

-- Whether a URL is claimed by one of these owners, which stand between spaces.
local function is_claimed(claims, field, owners)
  local owner = string.match(call('HGET', claims, field) or '', '^%S+ ')
  return owner and string.find(owners, ' ' .. owner, 1, true)
end

if bits > 1 then
  -- Of an absent URL, the first four counters tell nearly always.
  local get, few = {}, math.min(4, k)
  for j = 1, k do get[3 * j - 2], get[3 * j - 1] = 'GET', 'u4' end

  local function has_all(key, offsets, from, to, found)
    for j = from, to do get[3 * j] = offsets[j] end
    for _, counter in ipairs(call('BITFIELD_RO', key, unpack(get, 3 * from - 2, 3 * to))) do
      if counter == 0 then return false end
      if found then found[#found + 1] = counter end
    end
    return true
  end

  has = function(i, found)
    local key, offsets = keys[i + 1], offsets_in(i)
    return has_all(key, offsets, 1, few, found) and has_all(key, offsets, few + 1, k, found)
  end
end
