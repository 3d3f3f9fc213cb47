-- prelude_writes: how scripts that write refuse a user who may not run all of their commands.
--
-- It stands before the text of all scripts that write, except those that need prelude_rights.lua. A server
-- refuses single commands of a script, and what the script wrote before that would stay. So before its first
-- write, all of its commands are tested. (Their keys were tested when the script was called.)
--
-- KEYS[1]  any
--
-- Reply    An error NOPERM with a command that this user may not run; nothing has changed
-- Cost     2 us, and 0.1 us a command
local server, check = redis, redis.acl_check_cmd
local writes = {--[[ writes ]]}

local redis = setmetatable({call = function(name, ...)
  if check and writes[name] then
    for _, command in ipairs({--[[ commands ]]}) do
      -- With their keys: servers may crash over a command without them.
      if not check(command, KEYS[1], KEYS[1], KEYS[1]) then
        error(server.error_reply('NOPERM this user may not run ' .. command))
      end
    end
    check = nil
  end
  return server.call(name, ...)
end}, {__index = server})
