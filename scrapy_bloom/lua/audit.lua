-- audit: claim, and keep an exact record of a sample of the URLs, by which the answers are judged.
--
-- It follows on the text of another script (claim.lua, count.lua, take.lua) as its function `claim`.
-- It has that script's keys and arguments, and after them:
--
-- KEYS[1]   HASH  the block's ring, as in that script
-- KEYS[..]  HASH  exact records of the live generations, the active one's first: field = hash of a
--                 URL, value = "1" if it was new, "0" if it was said to be seen and was not
-- ARGV[..]  names of these records; Unix time in seconds at which the first one expires, 0 for never;
--           how many they are; and the sample: "<place in the call> <hash>" per URL
--
-- In the ring, "n:<name>" is the number of URLs in a record, "f:<name>" that of those said to be
-- seen wrongly.
--
-- Reply     as that script's
-- Cost      as that script's, and O(records) for each URL of the sample
local sample, size, expiry = table.remove(ARGV), tonumber(table.remove(ARGV)), table.remove(ARGV)
local ring, records, names = KEYS[1], {}, {}
for i = size, 1, -1 do records[i], names[i] = table.remove(KEYS), table.remove(ARGV) end

local reply = claim()
if reply[1] ~= 'ok' then return reply end
for i = 1, size do
  -- A record that has lost something (evicted, deleted) would call true answers false.
  local count = tonumber(redis.call('HGET', ring, 'n:' .. names[i]) or 0)
  if redis.call('HLEN', records[i]) ~= count then return reply end
end

for place, hash in string.gmatch(sample, '(%d+) (%x+)') do
  local verdict = string.sub(reply[2], place, place)
  local known = verdict ~= '0' and verdict ~= '1'
  for i = 1, size do known = known or redis.call('HEXISTS', records[i], hash) == 1 end
  if not known then
    redis.call('HSET', records[1], hash, verdict)
    redis.call('HINCRBY', ring, 'n:' .. names[1], 1)
    if verdict == '0' then redis.call('HINCRBY', ring, 'f:' .. names[1], 1) end
  end
end
if expiry == '0' then
  redis.call('PERSIST', records[1])
else
  redis.call('EXPIREAT', records[1], expiry)
end
return reply
