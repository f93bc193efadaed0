"""Black-box tests of shunt-agent: commands, media and copies of SIP go in; replies, packets and table entries come out."""
