-- ledger_add: keep the requests of pages of one block that are about to be recorded, or that have failed
-- for good, and note the pages that are missing. Called before the claims of these pages are ended.
--
-- KEYS[1]    HASH  the block's claims, as in claim.lua
-- KEYS[2]    LIST  its entries: "time tag request", the oldest first
-- KEYS[3]    HASH  its missing pages: field = fingerprint, value = "first last times why url": the Unix
--                  times at which it was missing first and last, and in how many windows
-- ARGV[1]    owners whose claims count: " a b "
-- ARGV[2]    0 for pages that were crawled; else they failed, and those are kept whose claims keep their
--            requests no longer, because they have failed so many times
-- ARGV[3]    Unix time in seconds: a page that was missing before, and not since, is missing in one more
--            window
-- ARGV[4]    Unix time in seconds at which the keys expire, 0 for never
-- ARGV[5]    entries from which on they are to be packed
-- ARGV[6]    missing pages that are noted, at most
-- ARGV[7]    windows for which a page is missing that is gone: its request is kept no longer
-- ARGV[8]    tag: whose requests they are
-- ARGV[9..]  per page: the field of its claim, and why it is missing, "" if it is there
--
-- Reply    {"ok", verdicts}          one character per page: "1" kept, "0" not: these owners do not claim
--                                    it, its request is not stored, it will be tried again, or is gone
--          {"ok", verdicts, "full"}  the same; there are entries to pack
-- Cost     O(pages): HGET, HDEL and RPUSH each
local MAX_URL = 2000  -- bytes that are noted: thousands of long ones must not fill the server
local claims, entries, missing = KEYS[1], KEYS[2], KEYS[3]
local now = redis.call('TIME')[1]
local tries, since, verdicts, count = tonumber(ARGV[2]), tonumber(ARGV[3]), {}, 0

-- Returns a request's URL, "" if it has none: of a long one the begin, with no part of a character.
local function url_of(request)
  local is_good, parsed = pcall(cjson.decode, request)
  local url = is_good and type(parsed) == 'table' and parsed.url
  if type(url) ~= 'string' then return '' end
  if #url <= MAX_URL then return url end
  return (string.gsub(string.sub(url, 1, MAX_URL), '[\192-\255][\128-\191]*$', ''))
end

-- Notes that a page is missing; returns in how many windows it was.
local function note_missing(field, why, request)
  local before = redis.call('HGET', missing, field)
  local first, last, times = string.match(before or '', '^(%d+) (%d+) (%d+) ')
  if not first then first, last, times = now, 0, 0 end
  if tonumber(last) < since then times = times + 1 end
  if before or redis.call('HLEN', missing) < tonumber(ARGV[6]) then
    local value = {first, now, string.format('%d', times), why, url_of(request)}
    redis.call('HSET', missing, field, table.concat(value, ' '))
  end
  return tonumber(times)
end

for i = 9, #ARGV, 2 do
  local field, why = ARGV[i], ARGV[i + 1]
  local claim, verdict = redis.call('HGET', claims, field), '0'
  local owner, attempt, request = string.match(claim or '', '^(%S+ )%S+ %d+ (%d+) ([^@].*)$')
  if owner and string.find(ARGV[1], ' ' .. owner, 1, true) and attempt + 1 >= tries then
    local times = 0
    if why ~= '' then
      times = note_missing(field, why, request)
    else
      redis.call('HDEL', missing, field)
    end
    if times < tonumber(ARGV[7]) then
      count = redis.call('RPUSH', entries, table.concat({now, ARGV[8], request}, ' '))
      verdict = '1'
    end
  end
  verdicts[#verdicts + 1] = verdict
end

for i = 2, 3 do
  if ARGV[4] == '0' then
    redis.call('PERSIST', KEYS[i])
  else
    redis.call('EXPIREAT', KEYS[i], ARGV[4])
  end
end
if count >= tonumber(ARGV[5]) then return {'ok', table.concat(verdicts), 'full'} end
return {'ok', table.concat(verdicts)}
