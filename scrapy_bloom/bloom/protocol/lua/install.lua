-- install: make the rings of a block of bitmaps that have other names so far, if it has none.
-- KEYS[1]   HASH    the block's hash, as in read.lua
-- KEYS[2..] STRING  per bitmap: its name so far, and its name
-- ARGV.expires  Unix time at which the hash expires, 0 for never
-- ARGV[..] per bitmap when it expires; then the fields and values of the hash
-- Reply     {"ring", now, ...}  as it is now: with another id, another client was faster
if call('EXISTS', ring) == 1 then return answer('ring') end
local bitmaps = (#KEYS - 1) / 2
for i = 1, bitmaps do
  call('RENAME', KEYS[2 * i], KEYS[2 * i + 1])
  expire(KEYS[2 * i + 1], ARGV[NAMED + i])
end
for i = NAMED + bitmaps + 1, #ARGV, 2 do call('HSET', ring, ARGV[i], ARGV[i + 1]) end
expire(ring, ARGV.expires)
return answer('ring')
