-- contains: test URLs of one block; changes nothing.
--
-- KEYS[1]  HASH    the block's ring
-- KEYS[2]  STRING  the active layer's bitmap
-- ARGV[1]  v of the ring the caller worked from
-- ARGV[2]  bytes of the layer
-- ARGV[3]  k, offsets per URL
-- ARGV[4]  offsets of all URLs, k little-endian uint32 each
--
-- Reply    {"ok", verdicts}          one character per URL: "1" seen, "0" certainly not
--          {"stale", v, state, now}  as in claim.lua
--          {"lost", v, "", now}      as in claim.lua
-- Cost     O(URLs * k) at most; a URL that was not seen costs about two GETBIT.
local ring, layer = KEYS[1], KEYS[2]
local k, packed = tonumber(ARGV[3]), ARGV[4]

local current = redis.call('HMGET', ring, 'v', 'state')
if current[1] ~= ARGV[1] then
  return {'stale', current[1] or '', current[2] or '', redis.call('TIME')[1]}
end
if redis.call('STRLEN', layer) ~= tonumber(ARGV[2]) then
  return {'lost', ARGV[1], '', redis.call('TIME')[1]}
end

local verdicts, position = {}, 1
for url = 1, #packed / (4 * k) do
  verdicts[url] = '1'
  for i = 0, k - 1 do
    if redis.call('GETBIT', layer, (struct.unpack('<I4', packed, position + 4 * i))) == 0 then
      verdicts[url] = '0'
      break
    end
  end
  position = position + 4 * k
end
return {'ok', table.concat(verdicts)}
