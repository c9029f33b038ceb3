"""cuDNN's attention on the host: the calls of `cudnn` over NumPy memory, strict where the library is.

It reads operands by address through the extents and strides it was given and computes in float64, so that what
the launcher says about layouts, masks, diagonals and dropout is checked by the numbers. The rules are those of
the frontend's support surface (sdpa_support_surface.h, 1.28.0) and of the H200 measurements.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {
    "BFLOAT16": np.dtype(ml_dtypes.bfloat16), "HALF": np.dtype(np.float16), "FLOAT": np.dtype(np.float32),
    "INT32": np.dtype(np.int32), "INT64": np.dtype(np.int64),
}  # fmt: skip


_TENSORS = ("bias", "seq_len_q", "seq_len_kv", "sink_token", "dBias")


class cudnnGraphNotSupportedError(Exception):
    """What the library raises for a graph that it refuses."""


class FakeTensor:
    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __getattr__(self, name: str) -> Callable[[Any], FakeTensor]:
        assert name in ("set_uid", "set_output", "set_dim", "set_stride", "set_data_type", "set_ragged_offset"), name

        def setter(value: Any) -> FakeTensor:
            self.fields[name.removeprefix("set_")] = value
            return self

        return setter

    def view(self, addresses: dict[int, int]) -> np.ndarray:
        """The tensor's memory as an array over its extents."""
        f = self.fields
        dtype, at = DTYPES[f["data_type"]], addresses[f["uid"]]
        assert at and at % 16 == 0, f"address {at} of {f}"
        assert "ragged_offset" not in f, f"{f} lies in pieces"
        return self._seen(at, dtype)

    def pieces(self, addresses: dict[int, int], lengths: np.ndarray) -> list[np.ndarray]:
        """The memory of each entry, [H, length, D]."""
        f = self.fields
        dtype, at = DTYPES[f["data_type"]], addresses[f["uid"]]
        offsets = f["ragged_offset"].view(addresses).reshape(-1)
        assert offsets.size == f["dim"][0] + 1 and at % 16 == 0
        found = []
        for start, n in zip(offsets[:-1].tolist(), lengths.tolist()):
            shape = (f["dim"][1], n, f["dim"][3])
            found.append(FakeTensor(dim=shape, stride=f["stride"][1:])._seen(at + start * dtype.itemsize, dtype))
        return found

    def _seen(self, at: int, dtype: np.dtype) -> np.ndarray:
        f = self.fields
        if 0 in f["dim"]:
            return np.zeros(f["dim"], dtype)
        reach = sum((n - 1) * s for n, s in zip(f["dim"], f["stride"])) + 1
        memory = (ctypes.c_ubyte * (reach * dtype.itemsize)).from_address(at)
        return np.ndarray(
            f["dim"], dtype, np.frombuffer(memory, np.uint8), strides=[s * dtype.itemsize for s in f["stride"]]
        )


class FakeGraph:
    """A `cudnn.pygraph`."""

    def __init__(self, owner: FakeCudnn, **types: Any) -> None:
        assert types.pop("handle") in owner.handles
        assert types.pop("intermediate_data_type") == types.pop("compute_data_type") == "FLOAT"
        self.owner, self.io, self.steps = owner, types["io_data_type"], []
        self.inputs: dict[str, FakeTensor | None] = {}
        self.options: dict[str, Any] = {}
        self.outputs: list[FakeTensor] = []
        self.kind = ""

    def tensor(self, **fields: Any) -> FakeTensor:
        assert set(fields) == {"name", "uid", "dim", "stride", "data_type"}
        return FakeTensor(**fields)

    def sdpa(self, *, q: Any, k: Any, v: Any, generate_stats: bool, **options: Any) -> tuple[FakeTensor, Any]:
        self.kind, self.inputs, self.options = "sdpa", {"q": q, "k": k, "v": v}, options
        self.outputs = [FakeTensor() for _ in range(1 + generate_stats)]
        return self.outputs[0], self.outputs[1] if generate_stats else None

    def sdpa_backward(
        self, *, q: Any, k: Any, v: Any, o: Any, dO: Any, stats: Any, use_deterministic_algorithm: bool, **options: Any
    ) -> list[FakeTensor]:
        self.owner.deterministic.append(use_deterministic_algorithm)
        self.kind, self.options = "sdpa_backward", options
        self.inputs = {"q": q, "k": k, "v": v, "o": o, "dO": dO, "stats": stats}
        self.outputs = [FakeTensor() for _ in range(3)]
        return list(self.outputs)

    def validate(self) -> None:
        options = self.options
        assert set(options) <= {
            "attn_scale", "name", "bias", "dropout", "diagonal_alignment", "diagonal_band_left_bound",
            "diagonal_band_right_bound", "use_padding_mask", "seq_len_q", "seq_len_kv", "sink_token", "dBias",
        }  # fmt: skip
        ragged = ["ragged_offset" in t.fields for t in (*self.inputs.values(), *self.outputs) if t.fields["dim"][3] > 1]
        padded = options.get("use_padding_mask", False)
        assert any(ragged) == all(ragged) == padded == ("seq_len_q" in options) == ("seq_len_kv" in options)
        q, k = self.inputs["q"].fields["dim"], self.inputs["k"].fields["dim"]
        left, right = options.get("diagonal_band_left_bound"), options.get("diagonal_band_right_bound")
        bottom = options.get("diagonal_alignment") == "BOTTOM_RIGHT"
        refused = {
            "no engine": self.kind in self.owner.refuse,
            "hidden_dim": any(t.fields["dim"][3] % 8 for t in (self.inputs["q"], self.inputs["v"])),
            "groups": q[1] % k[1] != 0,
            "window": left is not None and (left < 1 or (q[2] > k[2] and not padded)),
            "bottom right lengths": bottom and right == 0 and q[2] > k[2] and not padded,
            "sink": "sink_token" in options and q[2] == 1,
            "bottom right": bottom and right == 0 and ("bias" in options or "dropout" in options),
            "one token": self.kind == "sdpa_backward" and q[2] == k[2] == 1,
            "probability": options.get("dropout", (0,))[0] >= 1,
        }
        if any(refused.values()):
            raise cudnnGraphNotSupportedError(", ".join(name for name, is_so in refused.items() if is_so))
        for name in ("q", "k", "v"):
            f = self.inputs[name].fields
            assert f["data_type"] == self.io and f["stride"][3] == 1 and all(s % 8 == 0 for s in f["stride"][:3])
        self._step("validate")

    def _step(self, name: str) -> None:
        self.steps.append(name)

    def build_operation_graph(self) -> None:
        self._step("build_operation_graph")

    def create_execution_plans(self, modes: list[str]) -> None:
        assert modes == ["A", "FALLBACK"]
        self._step("create_execution_plans")

    def check_support(self) -> None:
        self._step("check_support")

    def build_plans(self) -> None:
        self._step("build_plans")
        self.owner.built.append(self)

    def get_workspace_size(self) -> int:
        return self.owner.workspace

    def execute(self, addresses: dict[int, int], workspace: int, handle: Any) -> None:
        assert self.steps == [
            "validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans",
        ]  # fmt: skip
        assert bool(workspace) == bool(self.owner.workspace) and handle in self.owner.handles
        used = [t for t in (*self.inputs.values(), *self.outputs) if t is not None]
        used += [self.options[name] for name in _TENSORS if name in self.options]
        used += self.options.get("dropout", ())[1:]
        used += [t.fields["ragged_offset"] for t in used if "ragged_offset" in t.fields]
        assert sorted(addresses) == sorted(t.fields["uid"] for t in used), "addresses of other tensors"
        self.owner.executed.append((self.kind, handle.stream))
        self.owner.pointers.append(addresses)
        if "seq_len_q" in self.options:
            self._by_entry(addresses)
            return
        views = {name: t.view(addresses) for name, t in self.inputs.items() if t is not None}
        results = [t.view(addresses) for t in self.outputs]
        if "dBias" in self.options:
            results.append(self.options["dBias"].view(addresses))
        self._compute(views, results, addresses)

    def _by_entry(self, addresses: dict[int, int]) -> None:
        """Entries of their own lengths, one by one; what lies behind their ends is neither read nor written."""
        lengths = [self.options[name].view(addresses).reshape(-1) for name in ("seq_len_q", "seq_len_kv")]
        inputs, outputs = list(self.inputs.items()), list(enumerate(self.outputs))
        for b, (rows, columns) in enumerate(zip(*lengths)):
            assert rows <= self.inputs["q"].fields["dim"][2] and columns <= self.inputs["k"].fields["dim"][2]
            found: dict[Any, np.ndarray] = {}
            for name, t in (*inputs, *outputs):
                if "ragged_offset" in t.fields:
                    keys = name in ("k", "v") or (self.kind == "sdpa_backward" and name in (1, 2))
                    found[name] = t.pieces(addresses, lengths[int(keys)])[b][None]
                else:
                    found[name] = t.view(addresses)[b : b + 1, :, :rows]
            if rows:
                views = {name: found[name] for name, _ in inputs}
                self._compute(views, [found[n] for n, _ in outputs], addresses)

    def _compute(self, views: dict[str, np.ndarray], results: list[np.ndarray], addresses: dict[int, int]) -> None:
        q, k, v = (views[n].astype(np.float64) for n in "qkv")
        share = q.shape[1] // k.shape[1]
        kh, vh = np.repeat(k, share, 1), np.repeat(v, share, 1)
        scale = self.options["attn_scale"]
        s = scale * q @ kh.swapaxes(2, 3)
        if "bias" in self.options:
            s = s + self.options["bias"].view(addresses).astype(np.float64)
        s[..., self._hidden(*s.shape[2:])] = -np.inf
        top, rest = s.max(-1, keepdims=True), 0.0
        if "sink_token" in self.options:
            assert self.options["sink_token"].fields["dim"] == [1, q.shape[1], 1, 1]
            sink = self.options["sink_token"].view(addresses).astype(np.float64)
            top = np.maximum(top, sink)
            rest = np.exp(sink - top)
        lse = top + np.log(np.exp(s - top).sum(-1, keepdims=True) + rest)
        p = np.exp(s - (views["stats"].astype(np.float64) if "stats" in views else lse))
        keep: Any = 1.0
        if "dropout" in self.options:
            probability, *words = self.options["dropout"]
            seed, offset = (int(w.view(addresses).reshape(())) for w in words)
            drawn = np.random.Generator(np.random.Philox(key=[seed, offset])).random(p.shape)
            keep = (drawn >= probability) / (1 - probability)
        if self.kind == "sdpa":
            results[0][...] = (p * keep) @ vh
            if len(results) > 1:
                results[1][...] = lse
            return
        o, do = views["o"].astype(np.float64), views["dO"].astype(np.float64)
        ds = p * (keep * (do @ vh.swapaxes(2, 3)) - (do * o).sum(-1, keepdims=True))
        if "dBias" in self.options:
            results[3][...] = ds
        ds = scale * ds
        groups = (q.shape[0], k.shape[1], share)
        results[0][...] = ds @ kh
        results[1][...] = (ds.swapaxes(2, 3) @ q).reshape(*groups, *k.shape[2:]).sum(2)
        results[2][...] = ((p * keep).swapaxes(2, 3) @ do).reshape(*groups, *v.shape[2:]).sum(2)

    def _hidden(self, queries: int, keys: int) -> np.ndarray:
        i, j = np.ogrid[:queries, :keys]
        if self.options.get("diagonal_alignment") == "BOTTOM_RIGHT":
            i = i + keys - queries
        left, right = (self.options.get(f"diagonal_band_{side}_bound") for side in ("left", "right"))
        hidden = np.zeros((queries, keys), bool)
        if left is not None:
            hidden |= j <= i - left
        if right is not None:
            hidden |= j > i + right
        return hidden


class FakeCudnn:
    """What `binding` calls.

    Attributes:
        refuse: kinds of graphs that have no engine.
        workspace: bytes that every graph asks for.
        handles: those alive.
        built: graphs, in order.
        deterministic: what each backward asked for.
        executed: (kind, stream) of every execution.
        pointers: addresses by unique id of every execution.
    """

    cudnnGraphNotSupportedError = cudnnGraphNotSupportedError
    data_type = SimpleNamespace(**{name: name for name in DTYPES})
    diagonal_alignment = SimpleNamespace(TOP_LEFT="TOP_LEFT", BOTTOM_RIGHT="BOTTOM_RIGHT")
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")

    def __init__(self) -> None:
        self.refuse: tuple[str, ...] = ()
        self.workspace = 64
        self.handles: list[Any] = []
        self.built: list[FakeGraph] = []
        self.deterministic: list[bool] = []
        self.executed: list[tuple[str, int]] = []
        self.pointers: list[dict[int, int]] = []

    def backend_version(self) -> int:
        return 91900

    def create_handle(self) -> Any:
        self.handles.append(SimpleNamespace(stream=None))
        return self.handles[-1]

    def destroy_handle(self, handle: Any) -> None:
        self.handles.remove(handle)

    def set_stream(self, *, handle: Any, stream: int) -> None:
        handle.stream = stream

    def pygraph(self, **types: Any) -> FakeGraph:
        return FakeGraph(self, **types)
