"""`nf.linalg`: the array API standard's linear algebra, and what NumPy has besides.

NumPy (LAPACK) and CuPy (cuSOLVER) compute; 16-bit floats go in as float32 and are rounded once. Failures raise
`nvfp.errors.LinAlgError`, which is also NumPy's: on CUDA a call that can fail waits for the GPU to know.
`matmul`, `matrix_transpose`, `outer`, `tensordot` and `vecdot` are those of `nf`.
"""

from nvfp.arrays.functions.linalg_factors import (
    EighResult as EighResult,
    EigResult as EigResult,
    QRResult as QRResult,
    SVDResult as SVDResult,
    cholesky as cholesky,
    eig as eig,
    eigh as eigh,
    eigvals as eigvals,
    eigvalsh as eigvalsh,
    qr as qr,
    svd as svd,
    svdvals as svdvals,
)
from nvfp.arrays.functions.linalg_norms import (
    cond as cond,
    matrix_norm as matrix_norm,
    matrix_rank as matrix_rank,
    norm as norm,
    vector_norm as vector_norm,
)
from nvfp.arrays.functions.linalg_products import (
    cross as cross,
    diagonal as diagonal,
    matrix_power as matrix_power,
    multi_dot as multi_dot,
    trace as trace,
)
from nvfp.arrays.functions.linalg_solving import (
    LstsqResult as LstsqResult,
    SlogdetResult as SlogdetResult,
    det as det,
    inv as inv,
    lstsq as lstsq,
    pinv as pinv,
    slogdet as slogdet,
    solve as solve,
    tensorinv as tensorinv,
    tensorsolve as tensorsolve,
)
from nvfp.arrays.functions.matmul import matmul as matmul, outer as outer, tensordot as tensordot, vecdot as vecdot
from nvfp.arrays.functions.shape import matrix_transpose as matrix_transpose
from nvfp.arrays.registry import enter
from nvfp.errors import LinAlgError as LinAlgError

enter("linalg", {name: value for name, value in globals().items() if not name.startswith("_")})
del enter
