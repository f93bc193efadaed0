"""Reading a host: all input and output of `shunt doctor`. Nothing here changes anything."""
