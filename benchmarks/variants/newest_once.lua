-- Newest layer first, tested bit by bit if there are older ones; a URL's offsets unpacked once.
local call, keys, format = redis.call, KEYS, '<' .. string.rep('I4', k)
local at, unpacked = 0, {}

local function offsets_in(i)
  local offsets = unpacked[start[i]]
  if not offsets then
    offsets = {struct.unpack(format, packed, at + start[i] + 1)}
    unpacked[start[i]] = offsets
  end
  return offsets
end

local function has(i)
  local key, offsets = keys[i + 1], offsets_in(i)
  for j = 1, k do
    if call('GETBIT', key, offsets[j]) == 0 then return false end
  end
  return true
end

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
  local bits = call('BITFIELD', keys[i + 1], unpack(bitfield))
  for j = 1, k do
    if bits[j] == 0 then
      count[i] = count[i] + 1
      return true
    end
  end
  return false
end

local before, verdicts, width = {unpack(count)}, {}, 4 * k * tonumber(ARGV[7])
for url = 1, #packed / width do
  at, unpacked = (url - 1) * width, {}
  -- Most URLs that were seen were seen of late. Where there is one layer, setting is testing.
  local verdict = others > 0 and has(1) and '0' or '1'
  if verdict == '1' then
    for i = written + 1, #keys - 1 do
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
  verdicts[url] = verdict
end

local filling = false
for i = 1, written do
  if count[i] > before[i] then
    redis.call('HSET', ring, ARGV[7 + i], count[i])
    local mark = 0.8 * capacity[i]
    filling = filling or (before[i] < mark and count[i] >= mark)
  end
end
if filling then return {'ok', table.concat(verdicts), 'filling'} end
return {'ok', table.concat(verdicts)}
