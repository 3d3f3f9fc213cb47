"""The operations of a filter, which yield calls of Lua scripts. No I/O."""
