"""Does a configuration keep its promise? Attacks, and the bound that follows from how well they do."""
