-- prelude_server: how scripts refuse to run on another process of the server than the caller knows.
--
-- It stands before the text of scripts for which it is asked. A server that was restarted, or replaced
-- by a replica, may have lost its last writes.
--
-- KEYS[1]     any
-- ARGV[last]  run_id of the process, or of all primaries of a cluster; taken off
--
-- Reply  {"restarted", ""}  it is another one; nothing has changed
-- Cost   O(1): INFO, 5 to 9 us
local known, info = table.remove(ARGV), redis.pcall('INFO', 'server')
local id = type(info) == 'string' and string.match(info, 'run_id:(%w+)')
if id and not string.find(known, id, 1, true) then return {'restarted', ''} end
