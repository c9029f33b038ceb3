"""The Numba twins: NumPy arrays, chunks of rows on nvfp's own threads."""
