"""The names of the root that load at their first use, by room; `nvfp/__init__.py` hands them out."""

from __future__ import annotations

from math import e as e, inf as inf, nan as nan, pi as pi

from nvfp import (
    files as files,
    inspect as inspect,
    interop as interop,
    kernels as kernels,
    nn as nn,
    optim as optim,
    recipes as recipes,
)
from nvfp.arrays import fft as fft, linalg as linalg, random as random
from nvfp.arrays.array import Array as Array, parameter as parameter
from nvfp.arrays.convert import array as array, asarray as asarray, asnumpy as asnumpy, from_dlpack as from_dlpack
from nvfp.arrays.creation import (
    empty as empty,
    empty_like as empty_like,
    full as full,
    full_like as full_like,
    ones as ones,
    ones_like as ones_like,
    zeros as zeros,
    zeros_like as zeros_like,
)
from nvfp.arrays.functions.comparison import (
    bitwise_and as bitwise_and,
    bitwise_invert as bitwise_invert,
    bitwise_left_shift as bitwise_left_shift,
    bitwise_or as bitwise_or,
    bitwise_right_shift as bitwise_right_shift,
    bitwise_xor as bitwise_xor,
    equal as equal,
    greater as greater,
    greater_equal as greater_equal,
    isfinite as isfinite,
    isinf as isinf,
    isnan as isnan,
    less as less,
    less_equal as less_equal,
    logical_and as logical_and,
    logical_not as logical_not,
    logical_or as logical_or,
    logical_xor as logical_xor,
    not_equal as not_equal,
    signbit as signbit,
    where as where,
)
from nvfp.arrays.functions.conversion import (
    astype as astype,
    copy as copy,
    to_device as to_device,
)
from nvfp.arrays.functions.counting import (
    bincount as bincount,
    interp as interp,
)
from nvfp.arrays.functions.cumulative import (
    cumprod as cumprod,
    cumsum as cumsum,
    cumulative_prod as cumulative_prod,
    cumulative_sum as cumulative_sum,
)
from nvfp.arrays.functions.diagonals import (
    cross as cross,
    diag as diag,
    diagonal as diagonal,
    kron as kron,
    trace as trace,
)
from nvfp.arrays.functions.differences import gradient as gradient, unwrap as unwrap
from nvfp.arrays.functions.einsum import einsum as einsum
from nvfp.arrays.functions.elementwise import (
    abs as abs,
    acos as acos,
    acosh as acosh,
    add as add,
    asin as asin,
    asinh as asinh,
    atan as atan,
    atan2 as atan2,
    atanh as atanh,
    ceil as ceil,
    clip as clip,
    conj as conj,
    copysign as copysign,
    cos as cos,
    cosh as cosh,
    divide as divide,
    exp as exp,
    expm1 as expm1,
    floor as floor,
    floor_divide as floor_divide,
    hypot as hypot,
    imag as imag,
    log as log,
    log1p as log1p,
    log2 as log2,
    log10 as log10,
    logaddexp as logaddexp,
    maximum as maximum,
    minimum as minimum,
    multiply as multiply,
    negative as negative,
    nextafter as nextafter,
    positive as positive,
    pow as pow,
    real as real,
    reciprocal as reciprocal,
    remainder as remainder,
    round as round,
    rsqrt as rsqrt,
    sigmoid as sigmoid,
    sign as sign,
    sin as sin,
    sinh as sinh,
    sqrt as sqrt,
    square as square,
    subtract as subtract,
    tan as tan,
    tanh as tanh,
    trunc as trunc,
)
from nvfp.arrays.functions.elementwise_composed import (
    angle as angle,
    exp2 as exp2,
    fmax as fmax,
    fmin as fmin,
    fmod as fmod,
    sinc as sinc,
)
from nvfp.arrays.functions.indexing import take as take, take_along_axis as take_along_axis
from nvfp.arrays.functions.joining import (
    array_split as array_split,
    concat as concat,
    repeat as repeat,
    roll as roll,
    split as split,
    stack as stack,
    tile as tile,
    unstack as unstack,
)
from nvfp.arrays.functions.matmul import matmul as matmul, outer as outer, tensordot as tensordot, vecdot as vecdot
from nvfp.arrays.functions.nans import (
    nan_to_num as nan_to_num,
    nanmax as nanmax,
    nanmean as nanmean,
    nanmin as nanmin,
    nanprod as nanprod,
    nanstd as nanstd,
    nansum as nansum,
    nanvar as nanvar,
)
from nvfp.arrays.functions.order import (
    histogram as histogram,
    median as median,
    percentile as percentile,
    quantile as quantile,
)
from nvfp.arrays.functions.padding import pad as pad
from nvfp.arrays.functions.products import dot as dot, inner as inner, vdot as vdot
from nvfp.arrays.functions.quantization import (
    dequantize as dequantize,
    fake_quant as fake_quant,
    quantize as quantize,
    requantize as requantize,
)
from nvfp.arrays.functions.reductions import (
    all as all,
    any as any,
    argmax as argmax,
    argmin as argmin,
    max as max,
    mean as mean,
    min as min,
    prod as prod,
    std as std,
    sum as sum,
    var as var,
)
from nvfp.arrays.functions.searching import (
    argwhere as argwhere,
    flatnonzero as flatnonzero,
    nonzero as nonzero,
)
from nvfp.arrays.functions.sets import (
    isin as isin,
    unique as unique,
    unique_all as unique_all,
    unique_counts as unique_counts,
    unique_inverse as unique_inverse,
    unique_values as unique_values,
)
from nvfp.arrays.functions.shape import (
    broadcast_arrays as broadcast_arrays,
    broadcast_shapes as broadcast_shapes,
    broadcast_to as broadcast_to,
    expand_dims as expand_dims,
    flip as flip,
    matrix_transpose as matrix_transpose,
    moveaxis as moveaxis,
    permute_dims as permute_dims,
    reshape as reshape,
    rot90 as rot90,
    squeeze as squeeze,
    swapaxes as swapaxes,
    transpose as transpose,
)
from nvfp.arrays.functions.sorting import (
    argsort as argsort,
    digitize as digitize,
    searchsorted as searchsorted,
    sort as sort,
)
from nvfp.arrays.functions.stacking import (
    atleast_1d as atleast_1d,
    atleast_2d as atleast_2d,
    atleast_3d as atleast_3d,
    column_stack as column_stack,
    concatenate as concatenate,
    dstack as dstack,
    hstack as hstack,
    ravel as ravel,
    vstack as vstack,
)
from nvfp.arrays.functions.statistics import (
    allclose as allclose,
    array_equal as array_equal,
    average as average,
    count_nonzero as count_nonzero,
    diff as diff,
    isclose as isclose,
    ptp as ptp,
)
from nvfp.arrays.graphs import cuda_graph as cuda_graph
from nvfp.arrays.namespace import __array_namespace_info__ as __array_namespace_info__
from nvfp.arrays.quantized import QuantizedArray as QuantizedArray
from nvfp.arrays.ranges import (
    arange as arange,
    eye as eye,
    linspace as linspace,
    meshgrid as meshgrid,
    tril as tril,
    triu as triu,
)
from nvfp.autograd import (
    checkpoint as checkpoint,
    custom_vjp as custom_vjp,
    enable_grad as enable_grad,
    grad as grad,
    no_grad as no_grad,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
from nvfp.files import (
    load as load,
    load_checkpoint as load_checkpoint,
    save as save,
    save_checkpoint as save_checkpoint,
)
from nvfp.inspect import (
    alignment as alignment,
    compare_formats as compare_formats,
    explain_recipe as explain_recipe,
    is_fp8_available as is_fp8_available,
    is_fp8_block_scaling_available as is_fp8_block_scaling_available,
    is_mxfp8_available as is_mxfp8_available,
    is_nvfp4_available as is_nvfp4_available,
    quant_error as quant_error,
)
from nvfp.kernels.cublaslt.plan import gemm_stats as gemm_stats
from nvfp.kernels.cublaslt.tuning import tune as tune
from nvfp.nn import quantized_model_init as quantized_model_init
from nvfp.nn.functional.attention import explain_attention as explain_attention
from nvfp.recipes import autocast as autocast

newaxis = None
