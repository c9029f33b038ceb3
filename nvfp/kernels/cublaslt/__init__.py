"""cuBLASLt: matrix products on CUDA.

`typemap` and `layout` are data and arithmetic, `feed` makes an operand addressable, `problem` is the
record, `plan` runs it, `cache` keeps plans, `binding` is the one file that calls the library.

Run on compute capability 9.0 (bfloat16, float16, float32, float64 and per-tensor FP8). The MXFP8 and
NVFP4 modes of compute capability 10.0 and newer are described (scale modes, layouts, records) but not
chosen: they have not run on that hardware yet, so those formats are expanded there too.
"""
