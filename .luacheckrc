-- Redis and Valkey run Lua 5.1 in a sandbox: with modules of their own, without access to the system.
std = "lua51"
not_globals = {"arg", "debug", "dofile", "io", "loadfile", "module", "newproxy", "os", "package", "print", "require"}
read_globals = {"ARGV", "KEYS", "bit", "cjson", "cmsgpack", "redis", "struct"}

-- A script is compiled together with the prelude that it names, so it can use the local variables of
-- the prelude. They look unused in the prelude, and undefined in the script.
files["**/prelude_*.lua"] = {ignore = {"2[1-4]1"}}
files["**/lua/*.lua"] = {
  read_globals = {
    -- prelude_ring
    "lost", "ring", "stale",
    -- prelude_rights
    "check_rights",
    -- prelude_claims
    "is_kept", "join", "parse", "pass_on", "tag_of", "take",
    -- prelude_ledger
    "keep",
    -- prelude_layers
    "bits", "call", "capacity", "groups", "has", "is_claimed", "k",
    "keys", "layers", "now", "offsets_in", "others",
    "packed", "sizes", "width", "written",
  },
  globals = {"at", "count", "unpacked"},
}
