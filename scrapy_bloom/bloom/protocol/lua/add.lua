-- add: test and set URLs of one block, atomically: exactly one caller gets "new" for a URL.
--
-- KEYS[1]     HASH    the block's ring
-- KEYS[2..]   STRING  bitmaps: first the layers that are written, then those that are only tested
-- ARGV[1..7]  the ring, and offsets of URLs in its layers, as in prelude_layers.lua
-- ARGV[8]     bytes of the written layers and the URLs they take, as in prelude_layers.lua
-- ARGV[9..]   per written layer: field of the ring with its count, "n:<layer>"
--
-- With a further key, it confirms pages: it records the URLs that are claimed, and ends their claims.
-- KEYS[last]  HASH    the block's claims, as in claim.lua
-- ARGV[..]    after the counts, per URL: the field of its claim
-- ARGV[last]  owners whose claims are confirmed: " a b "
--
-- With a ledger, it keeps the requests of these pages: see prelude_ledger.lua. Its keys and arguments
-- come last.
--
-- Needs    prelude_layers.lua and prelude_rights.lua
-- Reply    {"ok", verdicts}             one character per URL: "1" new, "0" seen,
--                                       "2" new but not recorded, because a written layer is full,
--                                       "8" not recorded, because these owners do not claim it
--          {"ok", verdicts, "filling"}  the same; a written layer has passed 80% of its capacity
--          "stale" and "lost" as in prelude_ring.lua
--          Only "ok" has changed anything.
-- Cost     O(URLs * (layers + k)): about two GETBIT per layer if there is one that is only tested (k
--          if the URL is in it), one BITFIELD per written layer (2.8 us for k = 14). The caller
--          bounds the batch.

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
  local before = call('BITFIELD', keys[i + 1], unpack(bitfield))
  for j = 1, k do
    if before[j] == 0 then
      count[i] = count[i] + 1
      return true
    end
  end
  return false
end

local before, verdicts = {unpack(count)}, {}
local claims = keys[layers + 2]
check_rights('HSET', 'GETBIT', claims and 'HDEL')
--[[ with a ledger: check_rights('TIME', 'RPUSH', 'HLEN', 'EXPIREAT', 'PERSIST') ]]
for url = 1, #packed / width do
  at, unpacked = (url - 1) * width, {}
  local field = claims and ARGV[8 + written + url]
  -- Most URLs that were seen were seen of late. Where there is one layer, setting is testing.
  local verdict = others > 0 and has(1) and '0' or '1'
  if field and not is_claimed(claims, field, ARGV[#ARGV]) then verdict = '8' end
  if verdict == '1' then
    for i = written + 1, layers do
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
  if field and verdict < '2' then
    --[[ with a ledger: keep(field, url) ]]
    call('HDEL', claims, field)
  end
  verdicts[url] = verdict
end

local filling = false
for i = 1, written do
  if count[i] > before[i] then
    redis.call('HSET', ring, ARGV[8 + i], count[i])
    local mark = 0.8 * capacity[i]
    filling = filling or (before[i] < mark and count[i] >= mark)
  end
end
if filling then return {'ok', table.concat(verdicts), 'filling'} end
return {'ok', table.concat(verdicts)}
