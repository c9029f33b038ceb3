"""Time `scale_layout`: block scales to the order that tensor cores read, and back."""

from __future__ import annotations

from functools import partial

import numpy as np
from _harness import Bench, main

from nvfp.kernels.scale_layout import scale_layout


def bench(b: Bench) -> None:
    # The scales of 16384 x 8192 mxfp8 values fit in L2; these do not.
    rows, columns = b.size((262144, 1024), (65536, 512), (16384, 512), (4096, 256))
    scale = b.normal((rows, columns // 2)).view(np.uint8)
    tiles = scale_layout(scale, "tiles128x4")
    name = f"{rows} x {columns} scales"
    b.row(f"{name} to tiles128x4", partial(scale_layout, scale, "tiles128x4"), moved=2 * scale.nbytes)
    back = partial(scale_layout, tiles, "plain", inverse_shape=scale.shape)
    b.row(f"{name} from tiles128x4", back, moved=2 * scale.nbytes)
    small = scale[:128, :4]
    b.host("scale_layout into out", partial(scale_layout, small, "tiles128x4", out=tiles[:512]), limit=9)


if __name__ == "__main__":
    main(bench)
