-- walk: look for a filter's keys by their names, on one node, some at a time; changes nothing.
--
-- KEYS[1]  HASH  the ring of any block that the node has
-- ARGV[1]  cursor: "0" at first, then that of the last reply
-- ARGV[2]  pattern of the names
--
-- Reply    {"ok", cursor, node, now, name, "", name, "", ...}  the cursor is "0" at the end; node is the
--          run id of the server that was walked, "" if this user may not know it. A key that is there
--          all the while is in one reply at least
-- Cost     O(keys walked), about 1,000 a call: some 0.3 ms. All keys of the node are walked in the end
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 1000)
local info = redis.pcall('INFO', 'server')
local node = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
local reply = {'ok', found[1], node, redis.call('TIME')[1]}
for _, name in ipairs(found[2]) do
  reply[#reply + 1] = name
  reply[#reply + 1] = ''
end
return reply
