"""Number formats: rows, the exact codec, packing, scale layouts, promotion and limits (NumPy only).

- `elements`, `formats`: the tables of element formats and quantized dtypes.
- `codec`: exact encode and decode. `scales`, `block`: the exact rules for scales and whole arrays.
- `packing`, `scale_layout`: how codes and scales lie in memory.
- `dense`, `promotion`, `finfo`: dense dtypes, mixed operations, limits and kinds.

Functions with the name of a submodule are imported from that submodule only (`finfo.finfo`).
"""

from nvfp.dtypes.block import (
    ExactBlocks as ExactBlocks,
    dequantize_exact as dequantize_exact,
    quantize_exact as quantize_exact,
)
from nvfp.dtypes.codec import decode as decode, encode as encode, round_to_odd32 as round_to_odd32
from nvfp.dtypes.dense import (
    DENSE as DENSE,
    NARROW as NARROW,
    DType as DType,
    as_dtype as as_dtype,
    is_narrow as is_narrow,
)
from nvfp.dtypes.elements import ELEMENTS as ELEMENTS, Element as Element
from nvfp.dtypes.finfo import (
    FInfo as FInfo,
    IInfo as IInfo,
    QuantFInfo as QuantFInfo,
    iinfo as iinfo,
    isdtype as isdtype,
)
from nvfp.dtypes.formats import (
    FORMATS as FORMATS,
    QuantDType as QuantDType,
    as_element as as_element,
    fp8_e4m3 as fp8_e4m3,
    fp8_e4m3_b128 as fp8_e4m3_b128,
    fp8_e5m2 as fp8_e5m2,
    mxfp4 as mxfp4,
    mxfp6_e2m3 as mxfp6_e2m3,
    mxfp6_e3m2 as mxfp6_e3m2,
    mxfp8 as mxfp8,
    mxfp8_e4m3 as mxfp8_e4m3,
    mxfp8_e5m2 as mxfp8_e5m2,
    mxint8 as mxint8,
    nvfp4 as nvfp4,
)
from nvfp.dtypes.grid import block_lengths as block_lengths
from nvfp.dtypes.packing import pack as pack, packed_length as packed_length, unpack as unpack
from nvfp.dtypes.promotion import result_type as result_type
from nvfp.dtypes.scale_layout import (
    from_k_major128 as from_k_major128,
    from_tiles128x4 as from_tiles128x4,
    tile_offset as tile_offset,
    tiles128x4_size as tiles128x4_size,
    to_k_major128 as to_k_major128,
    to_tiles128x4 as to_tiles128x4,
)
