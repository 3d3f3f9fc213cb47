"""How a server is reached: addresses, connections, time-outs, and what sends the calls."""
