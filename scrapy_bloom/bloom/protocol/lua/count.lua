-- count: test and set URLs of one block of a counting filter, atomically.
--
-- KEYS[1]     HASH    the block's ring
-- KEYS[2]     STRING  counters of the layer that is written
-- KEYS[3..]   STRING  counters of the layers that are only tested
-- ARGV[1..7]  the ring, and offsets of URLs in its layers, as in prelude_layers.lua
-- ARGV[8]     bytes of the written layer and the URLs it takes, as in prelude_layers.lua
-- ARGV[9]     field of the ring with its count, "n:<layer>": URLs that were added to it, less those
--             that were discarded from it
-- ARGV[10]    "nx" counts only what is new; "" counts each URL, as often as it is added
--
-- With a further key, it confirms pages, as add.lua does: their claims' fields are ARGV[11..], and
-- the owners ARGV[last]; also with a ledger.
--
-- Needs    prelude_layers.lua and prelude_rights.lua
-- Reply    {"ok", verdicts}             one character per URL: "1" new, "0" seen, "2" new but not
--                                       recorded, "5" seen but not counted, because the layer is full
--          {"ok", verdicts, "filling"}  as in add.lua
--          "stale" and "lost" as in prelude_ring.lua
--          Only "ok" has changed anything.
-- Cost     O(URLs * layers * k): one BITFIELD of 4 counters per layer that a URL is not in, a
--          second one of the other k - 4 if it is, and one that increments k (8.7 us for k = 17).
local counts_seen, capacity, count = ARGV[10] == '', capacity[1], count[1]

-- One BITFIELD command increments the k counters of a URL and returns them; URLs differ in the
-- offsets only. A saturated counter stays as it is.
local increment = {'OVERFLOW', 'SAT'}
for j = 1, k do
  increment[4 * j - 1], increment[4 * j], increment[4 * j + 2] = 'INCRBY', 'u4', '1'
end

-- Whether the URL is in any layer from i on.
local function has_from(i)
  for layer = i, layers do
    if has(layer) then return true end
  end
  return false
end

-- Counts the URL in the written layer; returns whether it was not in it.
local function set()
  local offsets, new = offsets_in(1), false
  for j = 1, k do increment[4 * j + 1] = offsets[j] end
  for _, counter in ipairs(call('BITFIELD', keys[2], unpack(increment))) do
    new = new or counter == 1
  end
  count = count + 1
  return new
end

local before, verdicts = count, {}
local claims = keys[layers + 2]
check_rights('HSET', 'BITFIELD_RO', claims and 'HDEL')
--[[ with a ledger: check_rights('TIME', 'RPUSH', 'HLEN', 'EXPIREAT', 'PERSIST') ]]
for url = 1, #packed / width do
  at, unpacked = (url - 1) * width, {}
  local field = claims and ARGV[10 + url]
  if field and not is_claimed(claims, field, ARGV[#ARGV]) then
    verdicts[url] = '8'
  elseif counts_seen and count < capacity then
    -- Also if it seems to be there: it may not, and others would lose what is discarded for it.
    verdicts[url] = set() and not has_from(2) and '1' or '0'
  elseif has_from(1) then
    verdicts[url] = counts_seen and '5' or '0'
  elseif count < capacity then
    set()
    verdicts[url] = '1'
  else
    verdicts[url] = '2'
  end
  if field and verdicts[url] < '2' then
    --[[ with a ledger: keep(field, url) ]]
    call('HDEL', claims, field)
  end
end

if count > before then redis.call('HSET', ring, ARGV[9], count) end
if before < 0.8 * capacity and count >= 0.8 * capacity then
  return {'ok', table.concat(verdicts), 'filling'}
end
return {'ok', table.concat(verdicts)}
