"""Public functions by subject, each with its gradient rule beside it. Re-exported by the root, not here."""
