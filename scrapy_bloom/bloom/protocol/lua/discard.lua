-- discard: take URLs of one block of a counting filter out of the newest layer that each is in.
--
-- KEYS[1]     HASH    the block's ring
-- KEYS[2..]   STRING  counters of all layers, the newest first
-- ARGV[1..7]  the ring, and offsets of URLs in its layers, as in prelude_layers.lua
-- ARGV[8]     "": no layer takes more URLs
-- ARGV[9..]   per layer: field of the ring with its count, "n:<layer>"
--
-- Needs    prelude_layers.lua and prelude_rights.lua
-- Reply    {"ok", verdicts}          one character per URL: "1" discarded (unless all its counters are
--                                    saturated: then it stays), "0" certainly not there
--          "stale" and "lost" as in prelude_ring.lua
--          Only "ok" has changed anything.
-- Cost     O(URLs * layers * k): as count.lua.

-- Counts a URL with these counters out of layer i. How many a saturated counter stands for is not
-- known: it stays as it is. If all are, the URL stays, and so does the layer's count: else the layer
-- would take more URLs than it can.
local function decrement(i, found)
  local offsets, commands = offsets_in(i), {'OVERFLOW', 'SAT'}
  for j = 1, k do
    if found[j] < 15 then
      local n = #commands
      commands[n + 1], commands[n + 2], commands[n + 3], commands[n + 4] =
        'INCRBY', 'u4', offsets[j], '-1'
    end
  end
  if #commands == 2 then return end
  call('BITFIELD', keys[i + 1], unpack(commands))
  local count = tonumber(redis.call('HGET', ring, ARGV[i + 8]) or 0)
  if count > 0 then redis.call('HSET', ring, ARGV[i + 8], count - 1) end
end

check_rights('HGET', 'HSET')
local verdicts = {}
for url = 1, #packed / width do
  at, unpacked = (url - 1) * width, {}
  verdicts[url] = '0'
  for i = 1, layers do
    local found = {}
    if has(i, found) then
      decrement(i, found)
      verdicts[url] = '1'
      break
    end
  end
end
return {'ok', table.concat(verdicts)}
