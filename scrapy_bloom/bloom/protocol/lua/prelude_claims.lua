-- prelude_claims: how scripts read and write claims, on which several spiders may have a request.
--
-- It stands before the text of scripts that name it as what they need. A claim's value is "owner nonce
-- time attempt request". The second to ninth character of an owner are the tag of its spider. For each
-- other spider that has found the URL a line follows: its tag, a space and its request, or "@" and the
-- field of the page that yielded it if the request is not kept.
--
-- KEYS[1]  any
--
-- Reply    none
-- Cost     O(length of the claim)
local function tag_of(owner) return string.sub(owner, 2, 9) end

-- Returns owner, nonce, time, attempt, request and the further lines; nothing of a damaged claim.
local function parse(claim)
  return string.match(claim, '^(%S+) (%S+) (%d+) (%d+) ([^\n]*)(.*)$')
end

local function is_kept(request)
  return request ~= '' and string.byte(request) ~= 64  -- "@"
end

-- Returns the request of a spider in further lines, nil if there is none, and the other lines.
local function take(lines, tag)
  local first, space = string.find(lines, '\n' .. tag .. ' ', 1, true)
  if not first then return nil, lines end
  local last = string.find(lines, '\n', space, true) or #lines + 1
  return string.sub(lines, space + 1, last - 1), string.sub(lines, 1, first - 1) .. string.sub(lines, last)
end

-- Returns the request and the further lines of a claim that gets another owner: what its spider has
-- stored, nil for nothing. The request of the owner before becomes a line.
local function pass_on(owner, to, request, lines)
  local before, after = tag_of(owner), tag_of(to)
  if before == after then return request, lines end
  local own, others = take(lines, after)
  if is_kept(request) then others = others .. '\n' .. before .. ' ' .. request end
  return own, others
end

local function join(owner, nonce, time, attempt, request, lines)
  return table.concat({owner, nonce, time, attempt, request}, ' ') .. lines
end
