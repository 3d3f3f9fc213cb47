-- note: note fields in a block's hash, if there is one. It's not made here, because it would have no expiry.
-- KEYS[1]   HASH  the block's hash, as in read.lua
-- ARGV[..]  fields and values
-- Reply     {"ring", now, ...}  as it is now: without fields, there is no hash
if call('EXISTS', ring) == 1 then call('HSET', ring, unpack(ARGV)) end
return answer('ring')
