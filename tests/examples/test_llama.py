"""examples/llama.py on tiny random models in transformers' layout: logits, cache, quantized weights, the program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from tests.devices import need_oracle
from tests.examples import decoder as oracle
from tests.tolerances import check

EXAMPLES = Path(__file__).parents[2] / "examples"
IDS = [3, 250, 17, 99, 4, 4, 77, 201, 6, 128, 9]
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_parameters": PLAIN},
    "tied": {"model_type": "llama", "rope_parameters": PLAIN, "tie_word_embeddings": True},
    "linear": {"model_type": "llama", "rope_parameters": LINEAR},
    "llama3": {"model_type": "llama", "rope_parameters": LLAMA3},
    "yarn": {"model_type": "llama", "rope_parameters": YARN},
    "window": {"model_type": "mistral", "rope_parameters": PLAIN, "sliding_window": 4},
    "qwen2": {"model_type": "qwen2", "rope_parameters": PLAIN, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "rope_parameters": PLAIN, "head_dim": 32},
}


@pytest.fixture(scope="module")
def llama() -> Iterator[Any]:
    """The example, imported beside its neighbour."""
    sys.path.insert(0, str(EXAMPLES))
    import llama as module

    yield module
    sys.path.remove(str(EXAMPLES))


def _model(folder: Path, name: str, dtype: Any = nf.float32) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write a tiny model; its configuration and weights."""
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0,
        "eos_token_id": None, **MODELS[name],
    }  # fmt: skip
    rng = np.random.default_rng(5)
    dim, hidden = config.get("head_dim", 16), 64
    shapes = {
        "q_proj": (4 * dim, hidden),
        "k_proj": (2 * dim, hidden),
        "v_proj": (2 * dim, hidden),
        "o_proj": (hidden, 4 * dim),
    }
    mlp = {"gate_proj": (96, hidden), "up_proj": (96, hidden), "down_proj": (hidden, 96)}
    weights: dict[str, np.ndarray] = {"model.embed_tokens.weight": rng.normal(size=(256, hidden))}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        for room, parts in (("self_attn", shapes), ("mlp", mlp)):
            for part, shape in parts.items():
                weights[f"{prefix}.{room}.{part}.weight"] = rng.normal(size=shape) * shape[1] ** -0.5 * 2
                if name == "qwen2" and part[0] in "qkv" and room == "self_attn":
                    weights[f"{prefix}.{room}.{part}.bias"] = rng.normal(size=shape[:1])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{norm}.weight"] = 1 + rng.normal(size=hidden) / 4
        if name == "qwen3":
            weights |= {f"{prefix}.self_attn.{p}_norm.weight": 1 + rng.normal(size=dim) / 4 for p in "qk"}
    weights["model.norm.weight"] = 1 + rng.normal(size=hidden) / 4
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = rng.normal(size=(256, hidden)) / 4
    arrays = {key: nf.asarray(value.astype(np.float32)).astype(dtype) for key, value in weights.items()}
    nf.files.save_model(folder, arrays, config=config)
    return config, arrays


def _logits(llama: Any, model: Any, ids: list[int]) -> np.ndarray:
    return np.concatenate(_pieces(model, [ids]))


def _pieces(model: Any, steps: list[list[int]]) -> list[np.ndarray]:
    """Logits of the tokens of each step."""
    cache, found = model.cache(sum(map(len, steps))), []
    with nf.no_grad():
        for step in steps:
            cache.pre_step({0: len(step)})
            found.append(np.asarray(model(nf.asarray([step]), cache))[0])
    return found


@pytest.mark.parametrize("name", list(MODELS))
def test_logits(device: Any, llama: Any, tmp_path: Path, name: str) -> None:
    config, arrays = _model(tmp_path / "m", name)
    found = _logits(llama, llama.load(tmp_path / "m", dtype=nf.float32), IDS)
    wanted = oracle.logits(config, {k: np.asarray(v) for k, v in arrays.items()}, IDS)
    check(found, wanted, "llama", scale=float(np.abs(wanted).max()))


@pytest.mark.parametrize("name", ["llama", "yarn", "window"])
def test_the_cache_changes_nothing(device: Any, llama: Any, tmp_path: Path, name: str) -> None:
    """Logits of a prompt in two pieces and single tokens are those of the whole."""
    _model(tmp_path / "m", name)
    model = llama.load(tmp_path / "m", dtype=nf.float32)
    pieces = _pieces(model, [IDS[:4], IDS[4:7], *([i] for i in IDS[7:])])
    whole = _logits(llama, model, IDS)
    check(np.concatenate(pieces), whole, "llama", scale=float(np.abs(whole).max()))
    assert model.cache_bytes(len(IDS)) == 2 * 2 * len(IDS) * 2 * 16 * 4


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp8", "fp8_e4m3", "mxint8"])
def test_quantized_weights_are_those_of_the_expanded_model(device: Any, llama: Any, tmp_path: Path, fmt: str) -> None:
    """On load or by convert: the same codes; logits are those of a model of their values."""
    _model(tmp_path / "m", "llama", nf.bfloat16)
    model = llama.load(tmp_path / "m", to=fmt, dtype=nf.float32)
    narrow = {n: a for n, a in model.arrays.items() if isinstance(a, nf.QuantizedArray)}
    assert len(narrow) == 14 and all(n.endswith("_proj.weight") for n in narrow)
    nf.files.convert_model(tmp_path / "m", tmp_path / "q", fmt, dialect="nvfp")
    read = llama.load(tmp_path / "q", dtype=nf.float32)
    assert all(nf.array_equal(read.arrays[name], array) for name, array in narrow.items())
    expanded = {n: np.asarray(a, np.float32) for n, a in model.arrays.items()}
    config = nf.files.open_checkpoint(tmp_path / "m").config
    wanted = oracle.logits(config, expanded, IDS)
    check(_logits(llama, read, IDS), wanted, "llama", scale=float(np.abs(wanted).max()))
    half = llama.load(tmp_path / "q")  # bfloat16: the kernel that reads narrow weights
    check(_logits(llama, half, IDS), wanted, "llama", scale=float(np.abs(wanted).max()))


def test_the_program(device: Any, llama: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _model(tmp_path / "m", "llama", nf.bfloat16)
    options = [str(tmp_path / "m"), "--prompt", "abc", "--tokens", "6", "--to", "nvfp4", "--head"]
    speed = llama.main(options)
    out = capsys.readouterr().out
    assert out.startswith("abc") and speed.prompt == 3 and speed.tokens == 5
    assert "tokens/s" in out and "weights: 0.1 MB" in out
    llama.main(options)
    assert capsys.readouterr().out.splitlines()[0] == out.splitlines()[0]  # the same tokens again
    llama.main([*options, "--temperature", "2", "--seed", "1"])
    assert capsys.readouterr().out.splitlines()[0] != out.splitlines()[0]


def test_generation_stops_and_refuses(llama: Any, tmp_path: Path) -> None:
    config, _ = _model(tmp_path / "m", "tied")
    model = llama.load(tmp_path / "m", dtype=nf.float32)
    made = list(llama.generate(model, IDS, 4))
    assert list(llama.generate(model, IDS, 4, stop=made[1:2])) == made[:2]
    for changes in (
        {"model_type": "mixtral"}, {"hidden_act": "gelu"}, {"rope_parameters": {"rope_type": "dynamic"}},
        {"partial_rotary_factor": 0.5},
    ):  # fmt: skip
        with pytest.raises(SystemExit, match="not built here"):
            llama.Llama({**config, **changes}, model.arrays, nf.float32)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(MODELS))
def test_logits_of_transformers(llama: Any, tmp_path: Path, name: str) -> None:
    transformers, torch = need_oracle("transformers"), need_oracle("torch")
    _model(tmp_path / "m", name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32)
    with torch.no_grad():
        wanted = theirs(torch.tensor([IDS])).logits[0].numpy()
    found = _logits(llama, llama.load(tmp_path / "m", dtype=nf.float32), IDS)
    check(found, wanted, "llama", scale=float(np.abs(wanted).max()))


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("dialect", "dtype"),
    [
        *(("compressed-tensors", fmt) for fmt in ("nvfp4", "mxfp4", "mxfp8", "fp8_e4m3")),
        *(("torchao", fmt) for fmt in ("nvfp4", "fp8_e4m3")),
        ("deepseek", "blocks"),
    ],
)
def test_transformers_loads_converted_folders(llama: Any, tmp_path: Path, dialect: str, dtype: str) -> None:
    """From config.json to logits: the folder is one that transformers takes for a quantized model."""
    transformers, torch = need_oracle("transformers"), need_oracle("torch")
    need_oracle({"torchao": "torchao", "deepseek": "accelerate"}.get(dialect, "compressed_tensors"))
    _model(tmp_path / "m", "llama", nf.bfloat16)
    fmt = nf.QuantDType(element="float8_e4m3fn", block=(32, 32), scale="float32", nonfinite="saturate")
    nf.files.convert_model(tmp_path / "m", tmp_path / "q", fmt if dtype == "blocks" else dtype, dialect=dialect)
    options = {}
    if dialect == "deepseek":  # its kernels need a GPU
        options["quantization_config"] = transformers.FineGrainedFP8Config(dequantize=True, weight_block_size=(32, 32))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.bfloat16, **options)
    with torch.no_grad():
        wanted = theirs(torch.tensor([IDS])).logits[0].float().numpy()
    found = _logits(llama, llama.load(tmp_path / "q", dtype=nf.float32), IDS)
    check(found, wanted, "llama", nf.bfloat16, scale=float(np.abs(wanted).max()))
