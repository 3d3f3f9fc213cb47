-- ledger_rules: note by which rules a spider's requests in all ledgers were looked up, if the note is
-- what the caller has read.
--
-- KEYS[1]  HASH  the header of the main filter: field = "rules:<tag>"
-- ARGV[1]  tag: whose requests
-- ARGV[2]  the note as the caller has read it, "" for none
-- ARGV[3]  the note to write; "" deletes it
-- ARGV[4]  "1" writes, "0" only reads
--
-- Reply    {"ok", note, "", now}  as it was before
-- Cost     O(1)
local field = 'rules:' .. ARGV[1]
local before = redis.call('HGET', KEYS[1], field) or ''
if ARGV[4] == '1' and before == ARGV[2] and redis.call('EXISTS', KEYS[1]) == 1 then
  if ARGV[3] == '' then
    redis.call('HDEL', KEYS[1], field)
  else
    redis.call('HSET', KEYS[1], field, ARGV[3])
  end
end
return {'ok', before, '', redis.call('TIME')[1]}
