"""Stop anywhere, resume, get the same bits."""
