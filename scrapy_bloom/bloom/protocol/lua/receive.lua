-- receive: take the first share out of a list.
-- KEYS[1]  LIST  the shares of a group
-- Reply    {"ok", "block:field block:field ..."}  "" if there is none, or one that is too long to be a share
local MAX_LENGTH = 200000
local share = call('LPOP', KEYS[1]) or ''
return {'ok', #share <= MAX_LENGTH and share or ''}
