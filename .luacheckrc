-- Redis and Valkey run Lua 5.1 in a sandbox: with modules of their own, without access to the system.
std = "lua51"
not_globals = {"arg", "debug", "dofile", "io", "loadfile", "module", "newproxy", "os", "package", "print", "require"}
read_globals = {"ARGV", "KEYS", "bit", "cjson", "cmsgpack", "redis", "struct"}

-- Some texts stand before others (scripts.py says which), so these can use their local variables. Such variables look
-- unused where they are made, and undefined where they are used.
for _, name in ipairs({"counters", "bitmaps", "ring", "server"}) do
  files["**/" .. name .. ".lua"] = {ignore = {"2[1-4]1"}}
end
files["**/lua/*.lua"] = {
  read_globals = {
    -- the number of arguments with names
    "NAMED",
    -- ring
    "MAX_FIELDS", "answer", "call", "expire", "name_of", "prolong", "ring",
    -- bitmaps
    "bits", "capacity", "counter", "current", "ends", "format", "groups", "judge_all", "k", "bitmaps", "lost",
    "offsets_in", "packed", "seen_from", "unpacked", "width", "window", "written",
    -- counters
    "counters", "get",
  },
  globals = {"at", "count", "has"},
}
