-- prelude_ledger: how scripts keep the requests of pages whose claims they are about to end.
--
-- It stands before the text of ledger_add.lua, and before that of scripts that confirm pages, if the
-- filter has a ledger. Its arguments come last, and are taken off.
--
-- KEYS[1]       any
-- KEYS[last-2]  HASH  the block's claims, as in claim.lua
-- KEYS[last-1]  LIST  its entries: "time tag request", the oldest first; the time at which the page's
--                     generation was opened or, of a page that is missing, at which it was counted
-- KEYS[last]    HASH  its missing pages: field = fingerprint, value = "first last times why url": the
--                     Unix times at which it was counted first and last, and in how many windows
-- ARGV[..]      per page why it is missing, "-" if it is there, with spaces between
-- ARGV[..]      0 for pages that were crawled; else they failed, and those are kept whose claims keep
--               their requests no longer, because they have failed so many times
-- ARGV[..]      Unix time in seconds: a page that is missing is counted again if it was counted before
-- ARGV[..]      Unix time in seconds at which the active generation was opened: no page that it takes is
--               from before, also after a clock has gone back
-- ARGV[..]      Unix time in seconds at which the keys expire, 0 for never
-- ARGV[..]      missing pages that are noted, at most
-- ARGV[..]      windows for which a page is missing that is gone: its request is kept no longer
-- ARGV[last]    tag: whose requests they are
--
-- Reply  none
-- Cost   O(1) a page: HGET, HDEL and RPUSH
local missing, entries, kept_claims = KEYS[#KEYS], KEYS[#KEYS - 1], KEYS[#KEYS - 2]
local tag, gone_after = table.remove(ARGV), tonumber(table.remove(ARGV))
local most_missing, keys_expire = tonumber(table.remove(ARGV)), table.remove(ARGV)
local opened = tonumber(table.remove(ARGV))
local since, tries = tonumber(table.remove(ARGV)), tonumber(table.remove(ARGV))
local LONGEST_URL = 2000  -- bytes that are noted: thousands of long ones must not fill the server
local whys, is_kept = {}, false
for why in string.gmatch(table.remove(ARGV), '%S+') do whys[#whys + 1] = why end

local function expire_with_ring(key)
  if keys_expire == '0' then
    redis.call('PERSIST', key)
  else
    redis.call('EXPIREAT', key, keys_expire)
  end
end

-- Returns a request's URL, "" if it has none: of a long one the begin, with no part of a character.
local function url_of(request)
  local is_good, parsed = pcall(cjson.decode, request)
  local url = is_good and type(parsed) == 'table' and parsed.url
  if type(url) ~= 'string' then return '' end
  if #url <= LONGEST_URL then return url end
  return (string.gsub(string.sub(url, 1, LONGEST_URL), '[\192-\255][\128-\191]*$', ''))
end

-- Notes that a page is missing, once a window; returns whether its request is to be kept.
local function note_missing(field, why, time, request)
  local before = redis.call('HGET', missing, field)
  local first, last, times = string.match(before or '', '^(%d+) (%d+) (%d+) ')
  if not first then first, last, times = time, 0, 0 end
  if tonumber(last) >= since then return false end  -- counted, and kept, in this window
  times = times + 1
  if before or redis.call('HLEN', missing) < most_missing then
    local value = {first, time, string.format('%d', times), why, url_of(request)}
    redis.call('HSET', missing, field, table.concat(value, ' '))
    expire_with_ring(missing)
  end
  return times < gone_after
end

-- Keeps the request of a page, given the field of its claim and its place among the pages; returns
-- whether it was kept: it is not if it is not stored, if it will be tried again, or if it is missing
-- and was kept in this window, or is gone.
local function keep(field, place)
  local claim, now = redis.call('HGET', kept_claims, field), tonumber(redis.call('TIME')[1])
  local time = string.format('%d', now < opened and opened or now)
  local attempt, request = string.match(claim or '', '^%S+ %S+ %d+ (%d+) ([^@\n][^\n]*)')
  if not request or attempt + 1 < tries then return false end
  if whys[place] == '-' then
    redis.call('HDEL', missing, field)
  elseif not note_missing(field, whys[place], time, request) then
    return false
  end
  -- A page that is recorded in the second of a rotation is of the generation before, or of the new one.
  local since_when = whys[place] == '-' and string.format('%d', opened) or time
  redis.call('RPUSH', entries, table.concat({since_when, tag, request}, ' '))
  if not is_kept then expire_with_ring(entries) end
  is_kept = true
  return true
end
