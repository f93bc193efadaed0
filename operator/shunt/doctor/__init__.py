"""`shunt doctor`: what is wrong with a host for a configuration. `host` reads it, everything else judges what was read."""
