-- As once.lua; the newest layer is tested bit by bit before it is set, after the older ones.
local call, keys, format = redis.call, KEYS, '<' .. string.rep('I4', k)

-- The offsets of the URL at hand, per size of layers: unpacked when they are needed first.
local unpacked, unpacked_at = {}, -1
local function offsets_of(i, at)
  if at ~= unpacked_at then unpacked, unpacked_at = {}, at end
  local offsets = unpacked[start[i]]
  if not offsets then
    offsets = {struct.unpack(format, packed, at + start[i] + 1)}
    unpacked[start[i]] = offsets
  end
  return offsets
end

local function has(i, at)
  local key, offsets = keys[i + 1], offsets_of(i, at)
  for j = 1, k do
    if call('GETBIT', key, offsets[j]) == 0 then return false end
  end
  return true
end

local bitfield = {}
for i = 1, 4 * k, 4 do
  bitfield[i], bitfield[i + 1], bitfield[i + 3] = 'SET', 'u1', '1'
end

local function set(i, at)
  local offsets = offsets_of(i, at)
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

local before, verdicts, width = {unpack(count)}, {}, 4 * k * tonumber(ARGV[5])
for url = 1, #packed / width do
  local at = (url - 1) * width
  local verdict = '1'
  for i = written + 1, #KEYS - 1 do
    if has(i, at) then verdict = '0' break end
  end
  if verdict == '1' then
    local full = false
    for i = 1, written do full = full or count[i] >= capacity[i] end
    if full then
      verdict = has(1, at) and '0' or '2'
    elseif has(1, at) or not set(1, at) then
      verdict = '0'
    else
      for i = 2, written do set(i, at) end
    end
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
