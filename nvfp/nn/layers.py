"""Small layers: Embedding, activations, Sequential and the GELU MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.random import Generator
from nvfp.dtypes.dense import float32
from nvfp.errors import ArgumentError, DTypeError, message
from nvfp.kernels.activation import KINDS
from nvfp.nn._init import Init, Normal, count
from nvfp.nn._initial import Initial
from nvfp.nn.functional.activation import activation, clamp
from nvfp.nn.functional.embedding import embedding
from nvfp.nn.linear import Linear
from nvfp.nn.module import Module


class Embedding(Module):
    """A table [V, H] looked up by integer ids.

    Args:
        num_embeddings: V.
        embedding_dim: H.
        init_method: of the table; default normal with standard deviation 0.02.
        dtype: of the table.
        device: of the table.
        rng: Generator for the initial values.

    Example:
        >>> import nvfp as nf
        >>> nf.nn.Embedding(10, 4, device="cpu")(nf.asarray([[1, 2, 3]], device="cpu")).shape
        (1, 3, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        init_method: Init | None = None,
        dtype: Any = float32,
        device: Any = None,
        rng: Generator | None = None,
    ) -> None:
        super().__init__()
        num_embeddings = count("Embedding", "num_embeddings", num_embeddings)
        embedding_dim = count("Embedding", "embedding_dim", embedding_dim)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        shape = num_embeddings, embedding_dim
        self.add_initial("weight", Initial(shape, dtype, init_method or Normal(0.02), rng), device)

    def forward(self, ids: Array) -> Array:
        """Return ``weight[ids]``, [..., H]."""
        return embedding(self.weight, ids)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{self.num_embeddings}, {self.embedding_dim}"


class Activation(Module):
    """An activation by name: ``"gelu"``, ``"relu"``, ``"silu"``, ``"qgelu"``, ``"srelu"``, or a gated one.

    Gated ones (``"swiglu"``, ``"geglu"``, ``"reglu"``, ``"glu"``, ``"qgeglu"``, ``"sreglu"``, ``"clamped_swiglu"``)
    take [..., 2N] and return [..., N]: the activation of the first half times the second half.

    Args:
        kind: the name.
        params: of ``"clamped_swiglu"``, as in `nvfp.nn.functional.activation.activation`.

    Example:
        >>> import nvfp as nf
        >>> nf.nn.Activation("relu")(nf.asarray([-1.0], device="cpu")).item()
        0.0
    """

    def __init__(self, kind: str = "gelu", params: Mapping[str, float] | None = None) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ArgumentError(
                message("Activation", f"a kind out of {', '.join(KINDS)}", repr(kind), "choose one of these")
            )
        if params is not None:
            clamp("Activation", kind, params)
        self.kind, self.params = kind, None if params is None else dict(params)

    def forward(self, x: Array) -> Array:
        """Return ``act(x)``."""
        return activation(x, self.kind, params=self.params)

    def extra_repr(self) -> str:
        """Kind."""
        return self.kind


class GELU(Activation):
    """GELU in its tanh form.

    Example:
        >>> import nvfp as nf
        >>> round(nf.nn.GELU()(nf.asarray([1.0], device="cpu")).item(), 4)
        0.8412
    """

    def __init__(self) -> None:
        super().__init__("gelu")


class ReLU(Activation):
    """``max(x, 0)``.

    Example:
        >>> import nvfp as nf
        >>> nf.nn.ReLU()(nf.asarray([-1.0, 2.0], device="cpu")).tolist()
        [0.0, 2.0]
    """

    def __init__(self) -> None:
        super().__init__("relu")


class SiLU(Activation):
    """``x sigmoid(x)``.

    Example:
        >>> import nvfp as nf
        >>> round(nf.nn.SiLU()(nf.asarray([1.0], device="cpu")).item(), 4)
        0.7311
    """

    def __init__(self) -> None:
        super().__init__("silu")


class GEGLU(Activation):
    """``gelu(a) b`` with a and b the halves of the last axis.

    Example:
        >>> import nvfp as nf
        >>> nf.nn.GEGLU()(nf.ones((3, 8), device="cpu")).shape
        (3, 4)
    """

    def __init__(self) -> None:
        super().__init__("geglu")


class SwiGLU(Activation):
    """``silu(a) b`` with a and b the halves of the last axis.

    Example:
        >>> import nvfp as nf
        >>> round(nf.nn.SwiGLU()(nf.asarray([1.0, 2.0], device="cpu")).item(), 4)
        1.4621
    """

    def __init__(self) -> None:
        super().__init__("swiglu")


class Sequential(Module):
    """Modules called one after another; parameter names start with their index.

    Example:
        >>> import nvfp as nf
        >>> sorted(nf.nn.Sequential(nf.nn.Linear(2, 2, bias=False, device="cpu"), nf.nn.GELU()).parameters())
        ['0.weight']
    """

    def __init__(self, *modules: Module) -> None:
        super().__init__()
        for i, module in enumerate(modules):
            if not isinstance(module, Module):
                raise DTypeError(message("Sequential", "Modules", repr(module), "wrap functions in a Module"))
            setattr(self, str(i), module)

    def forward(self, x: Any) -> Any:
        """Pass ``x`` through every module."""
        for module in self._modules.values():
            x = module(x)
        return x

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int) -> Module:
        modules: list[Module] = list(self._modules.values())
        return modules[index]


class MLP(Module):
    """Two Linears with an activation between: ``fc2(act(fc1(x)))``.

    Args:
        in_features: K.
        hidden_features: F.
        out_features: N; K unless given.
        activation: a kind of `Activation`; under a gated one fc1 has 2F outputs.
        bias: of both Linears.
        dtype: of the parameters.
        device: of the parameters.
        rng: Generator for the initial values.

    Example:
        >>> import nvfp as nf
        >>> nf.nn.MLP(4, 8, device="cpu")(nf.ones((2, 4), device="cpu")).shape
        (2, 4)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        *,
        activation: str = "gelu",
        bias: bool = True,
        dtype: Any = float32,
        device: Any = None,
        rng: Generator | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"bias": bias, "dtype": dtype, "device": device, "rng": rng}
        act, hidden_features = Activation(activation), count("MLP", "hidden_features", hidden_features)
        self.fc1 = Linear(in_features, hidden_features * (1 + KINDS[activation].gated), **options)
        self.act = act
        self.fc2 = Linear(hidden_features, in_features if out_features is None else out_features, **options)

    def forward(self, x: Array, is_first_microbatch: bool | None = None) -> Array:
        """Return ``fc2(act(fc1(x)))``, [..., N]."""
        return self.fc2(self.act(self.fc1(x, is_first_microbatch)), is_first_microbatch)  # type: ignore[no-any-return]
