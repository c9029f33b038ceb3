"""Random numbers: `default_rng` and `Generator`, the same bits on every device.

A Generator is a 64-bit key and a counter of draws (Philox4x32-10); element i of a draw depends on
nothing else, so results do not depend on device, threads or chunks. There is no global seed.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.convert import place
from nvfp.arrays.functions._common import integer, integers, one_axis, real
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf
from nvfp.device import Device, check_usable, default_device
from nvfp.dtypes.dense import as_dtype, float32, float64, int64, is_narrow
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, StateError, message
from nvfp.kernels.random import Draw, random as _draw

Size = int | Sequence[int] | None
_NAME = "philox4x32-10"
_ORDINALS = 2**30  # draws under one key


def default_rng(seed: int | Generator | None = None, *, device: Any = None) -> Generator:
    """Make a Generator.

    Args:
        seed: a non-negative integer of any size; None takes fresh entropy; a Generator comes back as it is.
        device: where draws go by default; `nf.default_device()` at the time of drawing without it.

    Raises:
        ArgumentError: a seed that is no non-negative integer.

    Example:
        >>> import nvfp as nf
        >>> rng = nf.random.default_rng(0, device="cpu")
        >>> rng.integers(10, size=3).shape
        (3,)
    """
    return seed if isinstance(seed, Generator) else Generator(seed, device=device)


class Generator:
    """Draws random arrays. Threads may share one; the order of their draws is then theirs.

    Args:
        seed: a non-negative integer, or None for fresh entropy.
        device: where draws go by default.

    Example:
        >>> import nvfp as nf
        >>> a, b = (nf.random.Generator(7, device="cpu") for _ in range(2))
        >>> nf.array_equal(a.normal(size=(4,)), b.normal(size=(4,)))
        True
    """

    def __init__(self, seed: int | None = None, *, device: Any = None) -> None:
        entropy = secrets.randbits(128) if seed is None else seed
        if isinstance(entropy, bool) or not isinstance(entropy, int | np.integer) or entropy < 0:
            raise ArgumentError(
                message("default_rng", "a non-negative integer or None", repr(seed), "pass e.g. seed=0")
            )
        self._device = None if device is None else check_usable(device, "default_rng")
        self._lock = threading.Lock()
        self._begin(int(entropy), ())

    def _begin(self, entropy: int, path: tuple[int, ...], draws: int = 0, children: int = 0) -> None:
        seeds = np.random.SeedSequence(entropy, spawn_key=path)
        self._entropy, self._path, self._draws, self._children = entropy, path, draws, children
        self._key = int(seeds.generate_state(1, np.uint64)[0])

    @property
    def state(self) -> dict[str, Any]:
        """What continues the sequence, as plain data (JSON can hold it). Set it to go back there.

        Raises:
            StateError: (when set) something else than what this property gave.
        """
        with self._lock:
            return {
                "bit_generator": _NAME, "entropy": self._entropy, "path": list(self._path),
                "draws": self._draws, "children": self._children,
            }  # fmt: skip

    @state.setter
    def state(self, value: Any) -> None:
        try:
            if value["bit_generator"] != _NAME:
                raise KeyError(value["bit_generator"])
            numbers = (
                int(value["entropy"]),
                tuple(int(n) for n in value["path"]),
                int(value["draws"]),
                int(value["children"]),
            )
            if min(numbers[0], *numbers[1], *numbers[2:]) < 0:
                raise ValueError("a negative number")
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                message("Generator.state", f"the state of a {_NAME} Generator", repr(error), "take it from rng.state")
            ) from error
        with self._lock:
            self._begin(*numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (None if self._device is None else str(self._device), self.state)

    def spawn(self, n: int) -> list[Generator]:
        """Return ``n`` independent Generators; a later call gives others.

        Example:
            >>> import nvfp as nf
            >>> len(nf.random.default_rng(0).spawn(3))
            3
        """
        n = integer("spawn", "n", n)
        if n < 0:
            raise ArgumentError(message("spawn", "n >= 0", n, "pass how many"))
        with self._lock:
            first = self._children
            self._children += n
        made = []
        for child in range(first, first + n):
            generator = Generator(0, device=self._device)
            generator._begin(self._entropy, (*self._path, child))
            made.append(generator)
        return made

    # -- draws -----------------------------------------------------------------------------------

    @explained
    def random(self, size: Size = None, *, dtype: Any = float32, device: Any = None) -> Array:
        """Return uniform numbers in [0, 1).

        Args:
            size: shape, or one length; None gives a 0-d array.
            dtype: floating; 16-bit ones are rounded, and stay below 1.
            device: where they go.

        Numerics:
            Multiples of 2**-24 (float64: 2**-33); the same bits on every device.
        """
        return self.uniform(0.0, 1.0, size, dtype=dtype, device=device)

    @explained
    def uniform(
        self, low: Any = 0.0, high: Any = 1.0, size: Size = None, *, dtype: Any = float32, device: Any = None
    ) -> Array:
        """Return uniform numbers in [low, high); other arguments as in `random`."""
        return self._float("uniform", low, high, size, dtype, device)

    @explained
    def normal(
        self, loc: Any = 0.0, scale: Any = 1.0, size: Size = None, *, dtype: Any = float32, device: Any = None
    ) -> Array:
        """Return normal numbers of mean ``loc`` and standard deviation ``scale``.

        Args:
            loc: mean, a scalar.
            scale: standard deviation >= 0, a scalar.
            size: shape, or one length; None gives a 0-d array.
            dtype: floating.
            device: where they go.

        Raises:
            ArgumentError: a negative ``scale``.

        Numerics:
            Box-Muller in float32; devices agree within rounding of the logarithm and cosine.

        Example:
            >>> import nvfp as nf
            >>> nf.random.default_rng(0, device="cpu").normal(size=(2, 3), dtype=nf.bfloat16).dtype
            dtype(bfloat16)
        """
        if not _number("normal", scale) >= 0:
            raise ArgumentError(message("normal", "scale >= 0", scale, "pass a standard deviation"))
        return self._float("normal", loc, scale, size, dtype, device)

    @explained
    def standard_normal(self, size: Size = None, *, dtype: Any = float32, device: Any = None) -> Array:
        """Return normal numbers of mean 0 and standard deviation 1; see `normal`."""
        return self._float("normal", 0.0, 1.0, size, dtype, device)

    @explained
    def exponential(self, scale: Any = 1.0, size: Size = None, *, dtype: Any = float32, device: Any = None) -> Array:
        """Return numbers of the exponential distribution with mean ``scale``; other arguments as in `random`.

        Args:
            scale: mean >= 0, a scalar.

        Raises:
            ArgumentError: a negative ``scale``.

        Numerics:
            ``-scale * log1p(-u)`` of the uniforms, in float32 (float64 in itself); devices agree within rounding of
            the logarithm. The largest value is 16.6 times the mean (float64: 22.9).

        Example:
            >>> import nvfp as nf
            >>> nf.random.default_rng(0, device="cpu").exponential(2.0, size=(2, 3)).shape
            (2, 3)
        """
        mean, target = _number("exponential", scale), as_dtype(dtype)
        if not mean >= 0:
            raise ArgumentError(message("exponential", "scale >= 0", scale, "pass the mean"))
        _check_floating("exponential", target)
        u = self.uniform(size=size, dtype=target if target == float64 else float32, device=device)
        return nf.astype(nf.log1p(-u) * -mean, target)

    @explained
    def integers(
        self,
        low: int,
        high: int | None = None,
        size: Size = None,
        *,
        dtype: Any = int64,
        endpoint: bool = False,
        device: Any = None,
    ) -> Array:
        """Return integers in [low, high) (``integers(n)``: 0 to n - 1), the same on every device.

        Args:
            low: smallest, or the end if ``high`` is left out.
            high: end, not included unless ``endpoint``.
            size: shape, or one length; None gives a 0-d array.
            dtype: an integer dtype that holds the range.
            endpoint: whether ``high`` itself can come.
            device: where they go.

        Raises:
            ArgumentError: an empty range, or one that the dtype does not hold.
            DTypeError: a dtype that is no integer.
        """
        low, high = _number("integers", low), high if high is None else _number("integers", high)
        first, last = (0, low) if high is None else (low, high)
        last += 1 if endpoint else 0
        target = as_dtype(dtype)
        if not isinstance(target, np.dtype) or target.kind not in "iu":
            raise DTypeError(message("integers", "an integer dtype", target, "pass e.g. nf.int64"))
        limits = np.iinfo(target)
        if not (limits.min <= first < last <= limits.max + 1):
            raise ArgumentError(
                message(
                    "integers", f"a range that is not empty, within {target}", (first, last), "correct low and high"
                )
            )
        return wrap(self._raw("integers", size, target, device, low=first, high=last))

    @explained
    def permutation(self, x: Any, *, axis: int = 0, device: Any = None) -> Array:
        """Return a random order of 0 .. x - 1, or the parts of an array along ``axis`` in random order.

        The order is drawn on the host, so it is the same on every device.
        """
        if isinstance(x, int | np.integer):
            return self._order(int(x), self._place(device))
        x = nf.asarray(x)
        place = one_axis("permutation", axis, x.ndim)
        return nf.take(x, self._order(x.shape[place], x.device), axis=place)

    @explained
    def shuffle(self, x: Array, *, axis: int = 0) -> None:
        """Put the parts of an Array along ``axis`` in random order, in place; see `permutation`.

        Args:
            x: a dense Array. As with every write, views of it and values that backward needs keep the old order.
            axis: whose parts move.

        Raises:
            DTypeError: no Array (use `permutation`), or a quantized one, which is immutable.
        """
        if not isinstance(x, Array):
            do = "use rng.permutation(x), which returns a new array"
            raise DTypeError(message("shuffle", "an nf.Array", type(x).__name__, do))
        x._check_writable("shuffle")
        x._assign(self.permutation(x, axis=axis), "shuffle")

    @explained
    def choice(
        self, a: Any, size: Size = None, replace: bool = True, p: Any = None, *, axis: int = 0, device: Any = None
    ) -> Array:
        """Return random elements of ``a``.

        Args:
            a: an array, or n for 0 .. n - 1.
            size: shape, or one length; None gives one element.
            replace: whether an element can come again.
            p: probabilities that add up to 1. Without ``replace`` the elements are drawn one after the other, each
                in proportion to the probabilities of those that are left.
            axis: of ``a``, along which parts are chosen.
            device: where the result goes if ``a`` is a number.

        Raises:
            ArgumentError: probabilities that do not fit, or more elements than there are (with a probability
                above 0) without ``replace``.
        """
        number = isinstance(a, int | np.integer)
        where = self._place(device) if number else nf.asarray(a).device
        count = int(a) if number else nf.asarray(a).shape[axis]
        shape = _shape(size)
        need = math.prod(shape)
        if p is not None:
            chosen = nf.asarray(self._weighted(np.asarray(p, np.float64), count, shape, replace), device=where)
        elif replace:
            chosen = self.integers(count, size=size, device=where)
        else:
            if need > count:
                raise ArgumentError(
                    message("choice", f"at most {count} elements without replace", need, "pass replace=True")
                )
            chosen = nf.reshape(self._order(count, where)[:need], shape)
        return chosen if number else nf.take(a, chosen, axis=axis)

    # -- inside ----------------------------------------------------------------------------------

    def _place(self, device: Any) -> Device:
        return check_usable(device, "random") if device is not None else self._device or default_device()

    def _raw(self, kind: Draw, size: Size, dtype: np.dtype, device: Any, low: Any = 0.0, high: Any = 1.0) -> Any:
        where = self._place(device)
        with self._lock:
            lap, ordinal = divmod(self._draws, _ORDINALS)
            key = (self._key + lap) % 2**64
            self._draws += 1
        return _draw(kind, _shape(size), dtype=dtype, key=key, ordinal=ordinal, low=low, high=high, device=where)

    def _float(self, kind: Draw, low: Any, high: Any, size: Size, dtype: Any, device: Any) -> Array:
        target, low, high = as_dtype(dtype), _number(kind, low), _number(kind, high)
        if isinstance(target, QuantDType) or is_narrow(target):
            return nf.astype(wrap(self._raw(kind, size, float32, device, low, high)), target)
        return wrap(self._raw(kind, size, target, device, low, high))

    def _order(self, n: int, device: Device) -> Array:
        """Sort 64 random bits per element, on the host."""
        bits = self._raw("bits", (2, n), np.dtype(np.uint32), "cpu").astype(np.uint64)
        order = np.argsort((bits[0] << np.uint64(32)) | bits[1], kind="stable")
        return place(order.astype(np.int64), device)

    def _weighted(self, p: np.ndarray, count: int, shape: tuple[int, ...], replace: bool) -> np.ndarray:
        if p.shape != (count,) or not (p >= 0).all() or not math.isclose(p.sum(), 1.0, abs_tol=1e-6):
            got = f"shape {p.shape}, sum {p.sum()}"
            raise ArgumentError(message("choice", f"{count} probabilities that sum to 1", got, "correct p"))
        high, low = self._raw("bits", (2, *(shape if replace else (count,))), np.dtype(np.uint32), "cpu").astype(
            np.float64
        )
        u = (high + low * 2.0**-32) * 2.0**-32
        if not replace:
            return _first_arrivals(u, p, shape)
        cumulative = np.cumsum(p)
        chosen: np.ndarray = np.minimum(np.searchsorted(cumulative, u * cumulative[-1], side="right"), count - 1)
        return chosen


def _first_arrivals(u: np.ndarray, p: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The elements that arrive first when each waits an exponential time of rate p: a weighted draw without repeats."""
    need, possible = math.prod(shape), int(np.count_nonzero(p))
    if need > possible:
        got = f"{need} of {possible} with a probability above 0"
        raise ArgumentError(message("choice", "no more elements than there are", got, "pass replace=True"))
    with np.errstate(divide="ignore"):
        times = -np.log1p(-u) / p
    times[p == 0] = np.inf
    return np.argsort(times, kind="stable")[:need].reshape(shape)


def _check_floating(op: str, dtype: Any) -> None:
    if isinstance(dtype, np.dtype) and dtype.kind in "biuc":
        raise DTypeError(message(op, "a floating dtype", dtype, "pass e.g. nf.float32"))


def _restored(device: str | None, state: dict[str, Any]) -> Generator:
    """A Generator that continues another (pickle and copy: a lock does not travel)."""
    generator = Generator(0, device=device)
    generator.state = state
    return generator


def _number(op: str, value: Any) -> Any:
    """A parameter of a distribution as a Python number; a shape in its place is told apart."""
    if isinstance(value, tuple | list):
        raise DTypeError(message(op, "numbers before the shape", value, f"name the shape: {op}(size={value})"))
    return real(op, value)


def _shape(size: Size) -> tuple[int, ...]:
    if size is None:
        return ()
    return integers("random", "size", size)
