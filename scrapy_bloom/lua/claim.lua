-- claim: test and set URLs of one block, atomically: exactly one caller gets "new" for a URL.
--
-- KEYS[1]  HASH    the block's ring
-- KEYS[2]  STRING  the active layer's bitmap
-- ARGV[1]  v of the ring the caller worked from
-- ARGV[2]  name of the layer, "<generation>.<index>"
-- ARGV[3]  bytes of the layer
-- ARGV[4]  URLs the layer takes
-- ARGV[5]  k, offsets per URL
-- ARGV[6]  offsets of all URLs, k little-endian uint32 each
--
-- Reply    {"ok", verdicts}          one character per URL: "1" new, "0" seen,
--                                    "2" new but not recorded, because the layer is full
--          {"stale", v, state, now}  the ring is another one ("" and "" if it is gone);
--                                    now is the server's clock in Unix seconds
--          {"lost", v, "", now}      the bitmap is gone (evicted, deleted) or has another size
--          Only "ok" has changed anything.
-- Cost     O(URLs * k); one BITFIELD per URL (2.8 us for k = 14). The caller bounds the batch.
local ring, layer = KEYS[1], KEYS[2]
local name, bytes, capacity = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local k, packed = tonumber(ARGV[5]), ARGV[6]

local current = redis.call('HMGET', ring, 'v', 'state', 'n:' .. name)
if current[1] ~= ARGV[1] then
  return {'stale', current[1] or '', current[2] or '', redis.call('TIME')[1]}
end
if redis.call('STRLEN', layer) ~= bytes then
  return {'lost', ARGV[1], '', redis.call('TIME')[1]}
end

-- Two BITFIELD commands that differ in the offsets only: one sets k bits and returns what they
-- were, the other (for a full layer) only reads them.
local set, get = {}, {}
for i = 1, k do
  local s, g = 4 * i - 3, 3 * i - 2
  set[s], set[s + 1], set[s + 3] = 'SET', 'u1', '1'
  get[g], get[g + 1] = 'GET', 'u1'
end

local format, width = '<' .. string.rep('I4', k), 4 * k
local before = tonumber(current[3]) or 0
local count = before
local verdicts = {}
for url = 1, #packed / width do
  local offsets = {struct.unpack(format, packed, (url - 1) * width + 1)}
  local full = count >= capacity
  local bits
  if full then
    for i = 1, k do get[3 * i] = offsets[i] end
    bits = redis.call('BITFIELD_RO', layer, unpack(get))
  else
    for i = 1, k do set[4 * i - 1] = offsets[i] end
    bits = redis.call('BITFIELD', layer, unpack(set))
  end
  local verdict = '0'
  for i = 1, k do
    if bits[i] == 0 then
      verdict = full and '2' or '1'
      break
    end
  end
  if verdict == '1' then count = count + 1 end
  verdicts[url] = verdict
end
if count > before then redis.call('HSET', ring, 'n:' .. name, count) end
return {'ok', table.concat(verdicts)}
