-- contains: test URLs of one block; changes nothing.
--
-- KEYS[1]     HASH    the block's ring
-- KEYS[2..]   STRING  bitmaps of the layers to test
-- ARGV[1..7]  the ring, and offsets of URLs in its layers, as in prelude_layers.lua
-- ARGV[8]     "": none is written
--
-- Needs    prelude_layers.lua
-- Reply    {"ok", verdicts}  one character per URL: "1" seen, "0" certainly not
--          "stale" and "lost" as in prelude_ring.lua
-- Cost     O(URLs * layers * k) at most, as in prelude_layers.lua
local verdicts = {}
for url = 1, #packed / width do
  at, unpacked = (url - 1) * width, {}
  verdicts[url] = '0'
  for i = 1, layers do
    if has(i) then verdicts[url] = '1' break end
  end
end
return {'ok', table.concat(verdicts)}
