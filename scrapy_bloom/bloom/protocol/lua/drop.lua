-- drop: delete a bitmap that a swap has taken out of the ring, the claims on an emptied block, or
-- what belongs to a filter that is deleted.
--
-- KEYS[1]  HASH    the block's ring
-- KEYS[2]  STRING  the bitmap; or HASH, the claims, the ring itself, the header, the workers
-- KEYS[3..]  further keys of the block, as those of its ledger
-- ARGV[1]  v of the ring, "" if there is none: if it is another one by now, nothing is deleted
--
-- Reply    {"ok", "1"}  done, if it was there
--          {"ok", "0"}  the ring is another one
-- Cost     frees the bitmap: about 0.6 ms for 8 MiB. So: no more than that in one pipeline (swaps.py).
--          (Claims are freed in the background.)
if (redis.call('HGET', KEYS[1], 'v') or '') ~= ARGV[1] then return {'ok', '0'} end
redis.call('UNLINK', unpack(KEYS, 2))
return {'ok', '1'}
