"""`main_grad`: the float32 array at a fixed address that gathers a variable's gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nvfp.autograd.tape import Leaf, Node
from nvfp.dtypes.dense import float32
from nvfp.errors import GradientError, ShapeError, message

if TYPE_CHECKING:
    from nvfp.arrays.array import Array


class MainGrad:
    """The part of `nf.Array` about `main_grad`."""

    __slots__ = ()

    _node: Node | Leaf | None
    shape: Any
    device: Any

    @property
    def main_grad(self) -> Array | None:
        """The float32 array at a fixed address that gathers all gradients of this variable in place of ``.grad``.

        Layers with ``fuse_wgrad_accumulation=True`` make it, and their GEMMs add to it; assign one to gather in
        memory of your own, or None to go back to ``.grad``. While there is one, ``.grad`` stays None; `nf.optim`
        reads it, and ``zero_grad()`` of modules and optimizers fills it with zeros.
        """
        return self._node.main_grad if type(self._node) is Leaf else None

    @main_grad.setter
    def main_grad(self, value: Array | None) -> None:
        leaf = self._variable("main_grad")
        if value is not None:
            kind = (getattr(value, "shape", None), getattr(value, "dtype", None), getattr(value, "device", None))
            if kind != (self.shape, float32, self.device) or not hasattr(value, "_placed"):
                got = f"{kind[1]} {kind[0]} on {kind[2]}"
                do = "pass nf.zeros(x.shape, dtype=nf.float32, device=x.device)"
                raise ShapeError(message("main_grad", f"float32 {self.shape} on {self.device}", got, do))
            value = value._placed(None)
        leaf.main_grad, leaf.stale = value, False

    @property
    def overwrite_main_grad(self) -> bool:
        """Whether every recorded forward pass of a layer that adds to `main_grad` starts it anew.

        The first gradient after it then replaces what is there, as ``is_first_microbatch=True`` does once.
        """
        return type(self._node) is Leaf and self._node.overwrite

    @overwrite_main_grad.setter
    def overwrite_main_grad(self, value: bool) -> None:
        self._variable("overwrite_main_grad").overwrite = bool(value)

    def _clear_gradient(self) -> None:
        """Forget ``.grad``, and fill main_grad with zeros (at its address: a captured graph adds to it)."""
        leaf = self._node
        if type(leaf) is not Leaf:
            return
        leaf.grad = None
        if leaf.main_grad is not None:
            leaf.main_grad.raw.fill(0)
            leaf.main_grad.storage.touch()

    def _variable(self, op: str) -> Leaf:
        if type(self._node) is not Leaf:
            do = "set x.requires_grad = True first"
            raise GradientError(message(op, "a variable", "an array without requires_grad", do))
        return self._node
