-- audit: claim, and keep an exact record of a sample of the URLs, by which the answers are judged.
--
-- It follows on the text of another script (claim.lua, count.lua, take.lua) as its function `claim`.
-- It has that script's keys and arguments, and after them:
--
-- KEYS[1]   HASH  the block's ring, as in that script
-- KEYS[..]  HASH  exact records of the live generations, the active one's first: field = hash of a
--                 URL, value = "1" if it was new, "0" if it was said to be seen and was not, "k" if
--                 it was on an older record already, or one of the records was lost
-- ARGV[..]  names of these records; Unix time in seconds at which the first one expires, 0 for never;
--           how many they are; "add" if URLs are recorded that are seen, too; and the sample:
--           "<place in the call> <hash>" per URL
--
-- In the ring, "n:<name>" is the number of fields put into a record, "k:<name>" that of those already
-- known, "f:<name>" that of those said to be seen wrongly.
--
-- Reply     as that script's
-- Cost      as that script's, and O(records) for each URL of the sample
local sample, adding = table.remove(ARGV), table.remove(ARGV) == 'add'
local size, expiry = tonumber(table.remove(ARGV)), table.remove(ARGV)
local ring, records, names, whole = KEYS[1], {}, {}, true
for i = size, 1, -1 do records[i], names[i] = table.remove(KEYS), table.remove(ARGV) end
for i = 1, size do
  -- A record that has lost something (evicted, deleted) would call true answers false: until its
  -- generation is forgotten, URLs are recorded and not judged.
  local count = tonumber(redis.call('HGET', ring, 'n:' .. names[i]) or 0)
  whole = whole and redis.call('HLEN', records[i]) == count
end

local reply = claim()
if reply[1] ~= 'ok' then return reply end

local function record(hash, value, mark)
  redis.call('HSET', records[1], hash, value)
  redis.call('HINCRBY', ring, 'n:' .. names[1], 1)
  if mark then redis.call('HINCRBY', ring, mark .. names[1], 1) end
end

for place, hash in string.gmatch(sample, '(%d+) (%x+)') do
  local verdict = string.sub(reply[2], place, place)
  local known = not whole
  for i = 1, size do known = known or redis.call('HEXISTS', records[i], hash) == 1 end
  if known then
    -- Recorded (again) in the active generation, it outlives the older record.
    local here = verdict == '1' or (adding and verdict == '0')
    if here and redis.call('HEXISTS', records[1], hash) == 0 then record(hash, 'k', 'k:') end
  elseif verdict == '1' then
    record(hash, verdict)
  elseif verdict == '0' then
    record(hash, verdict, 'f:')
  end
end
if expiry == '0' then
  redis.call('PERSIST', records[1])
else
  redis.call('EXPIREAT', records[1], expiry)
end
return reply
