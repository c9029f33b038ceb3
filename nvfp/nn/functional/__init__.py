"""Fused functions with their gradient rules, one stem a file. Re-exports nothing."""
