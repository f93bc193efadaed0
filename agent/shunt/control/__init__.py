"""Control sockets: listeners for SIP servers, clients to relays, and the man in the middle."""
