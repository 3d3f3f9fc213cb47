-- claim: test and set URLs of one block, atomically: exactly one caller gets "new" for a URL.
--
-- KEYS[1]  HASH    the block's ring
-- KEYS[2]  STRING  the active layer's bitmap
-- ARGV[1]  v of the ring the caller worked from
-- ARGV[2]  field of the ring with the layer's count, "n:<layer>"
-- ARGV[3]  bytes of the layer
-- ARGV[4]  URLs the layer takes
-- ARGV[5]  k, offsets per URL
-- ARGV[6]  offsets of all URLs, k little-endian uint32 each
--
-- Reply    {"ok", verdicts}          one character per URL: "1" new, "0" seen,
--                                    "2" new but not recorded, because the layer is full
--          {"stale", v, state, now}  the ring is another one ("" and "" if it is gone);
--                                    now is the server's clock in Unix seconds
--          {"lost", v, "", now}      the bitmap is gone (evicted, deleted) or has another
--                                    size, or its count is gone
--          Only "ok" has changed anything.
-- Cost     O(URLs * k); one BITFIELD per URL (2.8 us for k = 14). The caller bounds the batch.
local ring, layer = KEYS[1], KEYS[2]
local bytes, capacity = tonumber(ARGV[3]), tonumber(ARGV[4])
local k, packed = tonumber(ARGV[5]), ARGV[6]

local current = redis.call('HMGET', ring, 'v', ARGV[2])
if current[1] ~= ARGV[1] then
  current = redis.call('HMGET', ring, 'v', 'state')
  return {'stale', current[1] or '', current[2] or '', redis.call('TIME')[1]}
end
local before = tonumber(current[2])
if not before or redis.call('STRLEN', layer) ~= bytes then
  return {'lost', ARGV[1], '', redis.call('TIME')[1]}
end

-- One BITFIELD command sets the k bits of a URL and returns what they were; URLs differ in the
-- offsets only.
local set = {}
for i = 1, 4 * k, 4 do
  set[i], set[i + 1], set[i + 3] = 'SET', 'u1', '1'
end

local format, width = '<' .. string.rep('I4', k), 4 * k
local count = before
local verdicts = {}
for url = 1, #packed / width do
  local offsets = {struct.unpack(format, packed, (url - 1) * width + 1)}
  verdicts[url] = '0'
  if count < capacity then
    for i = 1, k do set[4 * i - 1] = offsets[i] end
    local bits = redis.call('BITFIELD', layer, unpack(set))
    for i = 1, k do
      if bits[i] == 0 then
        verdicts[url] = '1'
        count = count + 1
        break
      end
    end
  else
    for i = 1, k do
      if redis.call('GETBIT', layer, offsets[i]) == 0 then
        verdicts[url] = '2'
        break
      end
    end
  end
end
if count > before then redis.call('HSET', ring, ARGV[2], count) end
return {'ok', table.concat(verdicts)}
