"""Control of conferences: who takes part, and the rows of the data plane that follow from it."""
