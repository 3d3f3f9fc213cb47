-- remove_workers: delete the entries of workers.
--
-- KEYS[1]  HASH  the filter's workers, as in heartbeat.lua
-- ARGV     per worker: its id, and its entry; another entry is left alone, "" stands for any
--
-- Reply    {"ok", "", "", now}
-- Cost     O(workers)
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] == '' or redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return {'ok', '', '', redis.call('TIME')[1]}
