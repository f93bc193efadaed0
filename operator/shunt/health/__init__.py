"""What is wrong with this host as a whole: one judgement from facts, which every command, the page, REST and metrics show. No I/O."""
