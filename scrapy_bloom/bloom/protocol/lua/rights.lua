-- rights: test which of some rights this user lacks; changes nothing, and runs none of the commands.
--
-- KEYS[1]  none: a key that the user may not use would refuse the whole script
-- ARGV[1]  how many names of keys follow
-- ARGV[2..]  the names of keys, which the user has to read and write
-- ARGV[..]  commands, as "HSET" or "MEMORY USAGE"
--
-- Reply    {"ok", "", "", 0, name, "key", command, "command", ...}  what the user may not use, or the server
--          does not have. Commands are tested on the first key that the user may use; on none, if
--          there is none. A server that cannot test rights lacks none
-- Cost     0.1 to 0.25 us a key or command
local reply, key = {'ok', '', '', 0}, nil

-- The arguments have to be complete: servers may crash over a command without its key.
local function may(...)
  local is_known, is_allowed = pcall(redis.acl_check_cmd, ...)
  return is_known and is_allowed
end

local names = redis.acl_check_cmd and tonumber(ARGV[1]) or -1
for i = 2, 1 + names do
  if may('EVALSHA', '', 1, ARGV[i]) then
    key = key or ARGV[i]
  else
    reply[#reply + 1], reply[#reply + 2] = ARGV[i], 'key'
  end
end
if not key then return reply end
for i = 2 + names, #ARGV do
  local command, subcommand = string.match(ARGV[i], '^(%S+) ?(%S*)$')
  local is_allowed
  if command == 'EVAL' or command == 'EVALSHA' then
    is_allowed = may(command, '', 1, key)
  elseif subcommand ~= '' then
    is_allowed = may(command, subcommand, key)
  else
    is_allowed = may(command, key, key, key)
  end
  if not is_allowed then reply[#reply + 1], reply[#reply + 2] = ARGV[i], 'command' end
end
return reply
