-- prelude_rights: how hot scripts refuse a user who may not run what comes after their first write.
--
-- It stands before the text of scripts that name it as what they need. The others test more, in another
-- way: see prelude_writes.lua.
--
-- KEYS[1]  any
--
-- Reply    An error NOPERM with a command that this user may not run; nothing has changed
-- Cost     0.1 to 0.25 us a command
local function check_rights(...)
  local check, key = redis.acl_check_cmd, KEYS[1]
  for _, command in ipairs({...}) do
    -- With their keys: servers may crash over a command without them.
    if check and not check(command, key, key, key) then
      error(redis.error_reply('NOPERM this user may not run ' .. command))
    end
  end
end
