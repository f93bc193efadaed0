"""The control channel: sockets towards SIP servers, clients to relays, and the man in the middle."""
