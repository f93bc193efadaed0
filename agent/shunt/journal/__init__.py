"""The journal: running calls outside the process, so that a restarted or a standby agent carries on where the last one was."""

from shunt.journal.codec import FORMAT, decode_call, encode_call
from shunt.journal.keeper import Journal
from shunt.journal.store import Fenced, Group, JournalError, Store

__all__ = ["FORMAT", "Fenced", "Group", "Journal", "JournalError", "Store", "decode_call", "encode_call"]
