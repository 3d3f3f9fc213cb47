-- As getbit.lua, with locals for what is looked up in every turn.
local call, keys, number = redis.call, KEYS, struct.unpack
local function has(i, at)
  for position = at + start[i] + 1, at + start[i] + 4 * k, 4 do
    if call('GETBIT', keys[i + 1], (number('<I4', packed, position))) == 0 then
      return false
    end
  end
  return true
end

local bitfield, format = {}, '<' .. string.rep('I4', k)
for i = 1, 4 * k, 4 do
  bitfield[i], bitfield[i + 1], bitfield[i + 3] = 'SET', 'u1', '1'
end

local function set(i, at)
  local offsets = {number(format, packed, at + start[i] + 1)}
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
    elseif not set(1, at) then
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
