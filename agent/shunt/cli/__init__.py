"""The `shunt` command."""
