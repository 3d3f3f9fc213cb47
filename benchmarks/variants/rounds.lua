-- Older layers are tested for the whole batch, a bit of each URL that is left at a time.
local call, keys, number = redis.call, KEYS, struct.unpack

local function has(i, at, from)
  local key = keys[i + 1]
  for position = at + start[i] + 4 * (from or 1) - 3, at + start[i] + 4 * k, 4 do
    if call('GETBIT', key, (number('<I4', packed, position))) == 0 then return false end
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

-- Which URLs are in older layers: a layer is asked for one bit of each URL that has had all bits so
-- far, which halves them every time; few are tested one by one.
local few, most = 6, 2000
local width = 4 * k * tonumber(ARGV[5])
local urls = #packed / width
local seen, get = {}, {}

local function survivors(i, j, alive)
  for n = #get / 3 + 1, #alive do get[3 * n - 2], get[3 * n - 1] = 'GET', 'u1' end
  for n = 1, #alive do
    get[3 * n] = number('<I4', packed, (alive[n] - 1) * width + start[i] + 4 * j - 3)
  end
  local bits, left = call('BITFIELD_RO', keys[i + 1], unpack(get, 1, 3 * #alive)), {}
  for n = 1, #alive do
    if bits[n] == 1 then left[#left + 1] = alive[n] end
  end
  return left
end

local function test(first, last)
  local unseen = {}
  for url = first, last do unseen[#unseen + 1] = url end
  for i = written + 1, #keys - 1 do
    local alive, j = unseen, 1
    while j <= k and #alive > few do
      alive, j = survivors(i, j, alive), j + 1
    end
    local found = false
    for n = 1, #alive do
      if has(i, (alive[n] - 1) * width, j) then seen[alive[n]], found = true, true end
    end
    if found then
      local left = {}
      for n = 1, #unseen do
        if not seen[unseen[n]] then left[#left + 1] = unseen[n] end
      end
      unseen = left
    end
  end
end
if #keys - 1 > written then
  for first = 1, urls, most do test(first, math.min(urls, first + most - 1)) end
end

local before, verdicts = {unpack(count)}, {}
for url = 1, urls do
  local at = (url - 1) * width
  local verdict = '1'
  if seen[url] then
    verdict = '0'
  else
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
