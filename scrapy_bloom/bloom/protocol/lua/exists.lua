-- exists: test which keys of one block there are; changes nothing.
--
-- KEYS[1]    a key of any type; so KEYS[2..]
--
-- Reply    {"ok", verdicts}  one character per key: "1" it is there, "0" it is not
-- Cost     O(keys)
local verdicts = {}
for i = 1, #KEYS do verdicts[i] = tostring(redis.call('EXISTS', KEYS[i])) end
return {'ok', table.concat(verdicts)}
