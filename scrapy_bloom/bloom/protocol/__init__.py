"""What a filter does, as operations that yield calls of Lua scripts. No I/O."""
