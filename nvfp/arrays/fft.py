"""`nf.fft`: the array API standard's Fourier transforms, and NumPy's over the last two axes.

NumPy and CuPy compute: float32 gives complex64, float64 complex128; integers and 16-bit floats count as float32.
"""

from nvfp.arrays.functions.fft import (
    fft as fft,
    fft2 as fft2,
    fftfreq as fftfreq,
    fftn as fftn,
    fftshift as fftshift,
    hfft as hfft,
    ifft as ifft,
    ifft2 as ifft2,
    ifftn as ifftn,
    ifftshift as ifftshift,
    ihfft as ihfft,
    irfft as irfft,
    irfft2 as irfft2,
    irfftn as irfftn,
    rfft as rfft,
    rfft2 as rfft2,
    rfftfreq as rfftfreq,
    rfftn as rfftn,
)
from nvfp.arrays.registry import enter

enter("fft", {name: value for name, value in globals().items() if not name.startswith("_")})
del enter
