-- restore: put back the header that an unfinished one keeps, as it was; see create.lua.
--
-- KEYS[1]  HASH  the header
-- ARGV[1]  token of the unfinished header, whose owner has replaced no ring
--
-- Reply    {"ok", "1"}  done; if there was no header, there is none again
--          {"ok", "0"}  another one is there, or it took the place of one that had begun
-- Cost     O(1)
local held = redis.call('HMGET', KEYS[1], 'token', 'former')
if held[1] ~= ARGV[1] or not held[2] then return {'ok', '0'} end
local expiry, fields = unpack(cjson.decode(held[2]))
-- First what frees memory: a server that is out of it refuses nothing of a script after that.
redis.call('DEL', KEYS[1])
for i = 1, #fields, 2 do redis.call('HSET', KEYS[1], fields[i], fields[i + 1]) end
if expiry > 0 then redis.call('PEXPIREAT', KEYS[1], expiry) end
return {'ok', '1'}
