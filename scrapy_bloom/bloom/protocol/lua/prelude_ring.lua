-- prelude_ring: how scripts refuse a ring that is not the one the caller works from.
--
-- It stands before the text of scripts that name it as what they need.
--
-- KEYS[1]  HASH  the block's ring
-- ARGV[1]  v of the ring the caller works from, "" if it expects none
--
-- Reply    {"stale", v, state, now}  the ring is another one ("" and "" if it is gone), or its active
--                                    generation has ended; now is in Unix seconds
--          {"lost", v, "", now, "layers", names}  bitmaps are gone (evicted, deleted), have another
--                                    size, or have no count; names are separated by spaces
-- Cost     O(1)
local ring = KEYS[1]

local function stale()
  local current = redis.call('HMGET', ring, 'v', 'state')
  return {'stale', current[1] or '', current[2] or '', redis.call('TIME')[1]}
end

local function lost(bitmap)
  local name = string.match(bitmap, '[^:]+$')
  return {'lost', ARGV[1], '', redis.call('TIME')[1], 'layers', name}
end
