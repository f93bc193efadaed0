"""`shunt doctor`: each check from data, the reading of a host, and real processes in a network namespace."""
