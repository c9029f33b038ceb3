"""A training step captured by `nf.cuda_graph` and replayed equals eager, bit for bit."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.arrays import graphs
from nvfp.arrays.functions import conversion
from nvfp.errors import ArgumentError, ShapeError, StateError
from nvfp.nn.functional.cross_entropy import cross_entropy
from tests.recipes.every import RECIPES


def make(recipe: Any) -> tuple[nf.nn.Module, nf.optim.AdamW, Any]:
    rng = nf.random.default_rng(0)
    options = {"dtype": nf.bfloat16, "rng": rng}
    model = nf.nn.Sequential(
        nf.nn.Embedding(64, 64, **options), nf.nn.MLP(64, 128, **options), nf.nn.Linear(64, 64, **options)
    )
    optimizer = nf.optim.AdamW(model.parameters(), lr=0.01)

    def step(ids: nf.Array, targets: nf.Array) -> nf.Array:
        optimizer.zero_grad()
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            loss = cross_entropy(model(ids), targets)
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECIPES)
def test_replayed_steps_equal_eager_steps(name: str) -> None:
    data = np.random.default_rng(1).integers(0, 64, (6, 2, 48)).astype(np.int32)
    results = []
    for captured in (False, True):
        model, optimizer, step = make(RECIPES[name])
        run = nf.cuda_graph(step) if captured else step
        losses = []
        for i, (ids, targets) in enumerate(data):
            if i == 4:
                optimizer.lr = 0.003  # a device word: the captured graph reads the new value
            losses.append(np.asarray(run(nf.asarray(ids, device="cuda"), nf.asarray(targets, device="cuda"))).tobytes())
        state = {**model.state_dict(), **{f"o.{k}": v for k, v in optimizer.state_dict().items()}}
        results.append((losses, {k: np.asarray(v).tobytes() for k, v in state.items()}))
    assert results[0][0] == results[1][0]
    assert results[0][1] == results[1][1]


@pytest.mark.gpu
def test_a_replay_counts_what_it_wrote() -> None:
    model, _, step = make(None)
    run = nf.cuda_graph(step)
    ids = nf.asarray(np.zeros(8, np.int32), device="cuda")
    versions = []
    for _ in range(4):
        run(ids, ids)
        versions.append(model.parameters()["2.weight"].storage.version)
    assert versions == sorted(set(versions))


@pytest.mark.gpu
def test_other_shapes_are_refused() -> None:
    run = nf.cuda_graph(lambda x: x + x)
    assert np.asarray(run(nf.ones((2,), device="cuda"))).tolist() == [2, 2]
    with pytest.raises(ShapeError, match=r"\[cuda_graph\] expected inputs like the first call's"):
        run(nf.ones((3,), device="cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["bf16", "fp8", "fp8-current", "mxfp8", "nvfp4-default"])
def test_a_whole_layer_with_dropout_equals_eager(name: str) -> None:
    """Changing inputs, a changing learning rate, two kinds of random numbers, a gradient of the input."""
    results = []
    for captured in (False, True):
        options = {"dtype": nf.bfloat16, "rng": nf.random.default_rng(0)}
        model = nf.nn.TransformerLayer(64, 128, 4, hidden_dropout=0.1, attention_dropout=0.0, **options)
        optimizer = nf.optim.AdamW(model.parameters(), lr=0.01)

        def step(x: nf.Array, model: Any = model, optimizer: Any = optimizer) -> nf.Array:
            optimizer.zero_grad()
            with nf.autocast(enabled=RECIPES[name] is not None, recipe=RECIPES[name]):
                y = model(x)
            loss = (y * y).sum()
            loss.backward()
            optimizer.step()
            return loss

        run = nf.cuda_graph(step) if captured else step
        found = []
        for i in range(6):
            x = nf.random.default_rng(i).normal(size=(2, 16, 64), dtype=nf.bfloat16)
            x.requires_grad = True
            optimizer.lr = 0.01 / (1 + i)
            found += [np.asarray(run(x)).tobytes(), np.asarray(x.grad).tobytes()]
        state = {**model.state_dict(), **optimizer.state_dict()}
        results.append((found, {key: np.asarray(value).tobytes() for key, value in state.items()}))
    assert results[0] == results[1]


@pytest.mark.gpu
@pytest.mark.parametrize("reads", [True, False])
def test_a_step_that_moves_values_between_host_and_gpu_is_told(reads: bool) -> None:
    host: list[Any] = [True]

    def step(x: nf.Array) -> nf.Array:
        if not host:
            return x + 1.0
        return x + (x.sum().item() if reads else nf.asarray([1.0, 2.0]))

    run, x = nf.cuda_graph(step), nf.ones((2,), device="cuda")
    run(x)
    with pytest.raises(StateError, match=r"\[cuda_graph\] expected a step that (leaves|takes)"):
        run(x)
    host.clear()  # the next call captures what runs now
    assert [np.asarray(run(x)).tolist() for _ in range(2)] == [[2, 2], [2, 2]]


@pytest.mark.gpu
def test_a_step_that_waits_is_told() -> None:
    import cupy

    def step(x: nf.Array) -> nf.Array:
        y = x + x
        cupy.cuda.get_current_stream().synchronize()
        return y

    run, x = nf.cuda_graph(step), nf.ones((2,), device="cuda")
    run(x)
    with pytest.raises(StateError, match=r"\[cuda_graph\] expected a step that never waits"):
        run(x)
    assert np.asarray(x + x).tolist() == [2, 2]


def test_on_the_cpu_it_is_the_step() -> None:
    calls = []

    @nf.cuda_graph
    def step(x: nf.Array, y: nf.Array) -> nf.Array:
        calls.append(1)
        z = x * y
        z.sum().backward()
        return z

    for i in range(3):
        x = nf.full((2,), float(i), device="cpu", requires_grad=True)
        assert step(x, nf.ones((2,), device="cpu")).tolist() == [i, i] and x.grad.tolist() == [1, 1]
    x = nf.full((3,), 2.0, device="cpu", requires_grad=True)
    for _ in range(2):  # another shape is no matter; the gradient is that of the call
        step(x, x.detach())
    assert x.grad.tolist() == [2, 2, 2] and len(calls) == 5
    with nf.use_device("cpu"):
        assert nf.cuda_graph(lambda: 3)() == 3


@pytest.mark.parametrize("wrong", [2.0, nf.ones((2, 32), device="cpu").astype(nf.mxfp8), np.ones(2)])
def test_inputs_are_dense_arrays(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\[cuda_graph\] expected dense Arrays"):
        nf.cuda_graph(lambda x: x)(wrong)


def test_a_step_is_a_function() -> None:
    with pytest.raises(ArgumentError, match=r"\[cuda_graph\] expected a function"):
        nf.cuda_graph(3)  # type: ignore[arg-type]


class Cuda:
    """The part of CuPy that captures, over NumPy: a graph runs nothing again, but counts its launches."""

    def __init__(self) -> None:
        self.capturing, self.broken, self.launched = False, False, 0
        self.cuda = SimpleNamespace(
            Stream=lambda non_blocking: self, MemoryPool=lambda: SimpleNamespace(malloc=None),
            get_current_stream=lambda: self, using_allocator=lambda _: nullcontext(),
        )  # fmt: skip

    def __enter__(self) -> Cuda:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def record(self) -> None:
        return None

    def wait_event(self, event: None) -> None:
        return None

    def is_capturing(self) -> bool:
        return self.capturing

    def begin_capture(self) -> None:
        assert not self.capturing
        self.capturing, self.broken = True, False

    def end_capture(self) -> Any:
        assert self.capturing
        self.capturing = False
        if self.broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        return SimpleNamespace(launch=self.launch)

    def launch(self, stream: Any) -> None:
        self.launched += 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    found = Cuda()
    monkeypatch.setattr(graphs, "need", lambda *_, **__: found)
    monkeypatch.setattr(conversion, "need", lambda *_, **__: found)
    monkeypatch.setattr(nf.cuda_graph, "_on_cuda", staticmethod(lambda inputs: True))
    return found


def test_python_runs_twice_and_replays_follow(cuda: Cuda) -> None:
    p, runs = nf.parameter(nf.ones((2,), device="cpu")), []

    def step(x: nf.Array) -> nf.Array:
        runs.append(cuda.capturing)
        p.storage.touch()
        return x + 1.0

    run = nf.cuda_graph(step)
    outputs = [run(nf.full((2,), float(i), device="cpu")) for i in range(5)]
    assert runs == [False, True] and cuda.launched == 4
    assert outputs[1] is outputs[2] is outputs[4] is not outputs[0]
    assert p.storage.version == 5
    assert run._inputs[0].tolist() == [4, 4]  # copied in at every call


@pytest.mark.parametrize("error", [KeyError("k"), ShapeError("s"), KeyboardInterrupt()])
def test_a_step_that_fails_leaves_no_capture_behind(cuda: Cuda, error: BaseException) -> None:
    fails = [True]

    def step(x: nf.Array) -> nf.Array:
        if cuda.capturing and fails:
            raise error
        return x + 1.0

    run, x = nf.cuda_graph(step), nf.ones((2,), device="cpu")
    run(x)
    with pytest.raises(type(error)):
        run(x)
    assert not cuda.capturing and cuda.launched == 0
    fails.clear()
    run(x)
    assert cuda.launched == 1


@pytest.mark.parametrize("raises", [True, False])
def test_a_broken_capture_has_a_typed_error(cuda: Cuda, raises: bool) -> None:
    """CUDA breaks the capture where the step waits; that shows at once, or at its end."""

    def step(x: nf.Array) -> nf.Array:
        if cuda.capturing:
            cuda.broken = True
            if raises:
                raise RuntimeError("operation not permitted when stream is capturing")
        return x

    run, x = nf.cuda_graph(step), nf.ones((2,), device="cpu")
    run(x)
    with pytest.raises(
        StateError, match=r"\[cuda_graph\] expected a step that never waits for the GPU, got operation f"
    ):
        run(x)


def test_gradients_of_inputs_come_out(cuda: Cuda) -> None:
    def step(x: nf.Array, y: nf.Array) -> nf.Array:
        loss = (x * y).sum()
        loss.backward()
        return loss

    run, y = nf.cuda_graph(step), nf.asarray([2.0, 3.0], device="cpu")
    for _ in range(3):
        x = nf.ones((2,), device="cpu", requires_grad=True)
        run(x, y)
        assert x.grad.tolist() == [2, 3] and y.grad is None
