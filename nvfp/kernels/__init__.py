"""The kernels: raw NumPy or CuPy arrays and Operands in, the same out. See `stems.py` for the list."""
