//! The journal: where calls outlive their agent, in SQLite or Redis, and who is in charge of a shared one.
