-- remove_workers: delete the entries of workers.
--
-- KEYS[1]  ZSET  the filter's workers, as in heartbeat.lua
-- KEYS[2]  STRING  as in heartbeat.lua
-- ARGV[1]  nonce of this call
-- ARGV     then, per worker: its member, and its score; another one is left alone, "" stands for any
--
-- Reply    {"ok", "", "", now}
-- Cost     O(workers)
for i = 2, #ARGV, 2 do
  local score = ARGV[i + 1]
  if score == '' or redis.call('ZSCORE', KEYS[1], ARGV[i]) == score then
    if redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
      redis.call('SET', KEYS[2], ARGV[1], 'XX', 'KEEPTTL')
    end
  end
end
return {'ok', '', '', redis.call('TIME')[1]}
