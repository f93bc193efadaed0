"""shunt-relay from outside its process: commands over its control sockets, media over loopback."""
