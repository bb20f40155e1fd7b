"""A small GPT on characters: does an exact half of +1 help a language model?

Trains one decoder with real, sign, ternary (the absmean rule of BitNet b1.58) and bi-half linear layers on the
docstrings of Python's own standard library, and prints the loss on held-out text in nats per character.
Without arguments it is a short demonstration on a CPU; ``--full --seeds 3 --out runs/char_gpt`` is the experiment, and
``--weights runs/char_gpt/bihalf.safetensors`` then packs its bi-half model and generates text on a CPU.
"""

import argparse
import ast
import hashlib
import json
import math
import statistics
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as nnf

import equalbits as eb
from equalbits import functional as F
from equalbits.nn import WeightQuantizer
from equalbits.runtime import PackedModel, generate

SHORT = {"steps": 20, "batch": 8, "length": 32, "width": 32, "depth": 2, "heads": 2, "characters": 100_000}
FULL = {"steps": 1500, "batch": 64, "length": 256, "width": 384, "depth": 6, "heads": 6, "characters": 10_000_000}


class AbsMean(WeightQuantizer):
    """BitNet b1.58: each weight divided by the layer's mean ``|w|``, rounded and clipped to −1, 0 and +1."""

    has_own_scale = True

    def symbols(self, latents: Tensor) -> Tensor:
        """Return −1, 0 or +1 for each latent."""
        latents = latents.detach()
        return (latents / latents.abs().mean().clamp(min=1e-5)).round().clamp(-1, 1)

    def forward(self, latents: Tensor) -> Tensor:
        """Return the symbols times the mean ``|w|``; the gradient passes unchanged."""
        return F.straight_through(latents, self.symbols(latents) * latents.detach().abs().mean())


METHODS = {"real": None, "sign": eb.Sign, "absmean": AbsMean, "bihalf": eb.BiHalf}


class Block(nn.Module):
    """Causal attention and a feed-forward net, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input plus the outputs of the attention and of the feed-forward net."""
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nnf.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nnf.gelu(self.up(self.norm2(x))))


class CharGPT(nn.Module):
    """A decoder on characters: token ids in, the logits of each next character out."""

    def __init__(self, alphabet: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(alphabet, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, alphabet)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape (batch, length, alphabet)."""
        positions = self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.tokens(tokens) + positions)))


def docstrings() -> Iterator[str]:
    """Yield the docstrings of the standard library and the topics of its help."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"} & set(path.parts):
            continue
        try:
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
        except (SyntaxError, ValueError):  # templates and files for other versions
            continue
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        yield from (ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented))
        if path.parent.name == "pydoc_data":
            strings = (node.value for node in nodes if isinstance(node, ast.Constant))
            yield from (string for string in strings if isinstance(string, str) and len(string) > 500)


def read_text(characters: int) -> str:
    """Return at most ``characters`` characters of documentation, in printable ASCII."""
    parts, total = [], 0
    for part in docstrings():
        parts.append("".join(one for one in part if one == "\n" or " " <= one <= "~") + "\n\n")
        total += len(parts[-1])
        if total >= characters:
            break
    return "".join(parts)[:characters]


def loss_of(model: nn.Module, pieces: Tensor) -> Tensor:
    """Return the mean cross-entropy of each next character."""
    with torch.autocast(pieces.device.type, torch.bfloat16, enabled=pieces.is_cuda):
        logits = model(pieces[:, :-1])
    return nnf.cross_entropy(logits.float().flatten(0, 1), pieces[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, text: Tensor, options: argparse.Namespace) -> float:
    """Return the loss over the whole held-out text, read in pieces of the model's length."""
    pieces = text[: len(text) // (options.length + 1) * (options.length + 1)].view(-1, options.length + 1)
    model.eval()
    total = sum(float(loss_of(model, part)) * len(part) for part in pieces.split(options.batch))
    model.train()
    return total / len(pieces)


def train(method: str, seed: int, texts: tuple[Tensor, Tensor], options: argparse.Namespace) -> tuple[CharGPT, dict]:
    """Train one model; return it with its record."""
    torch.manual_seed(seed)
    learning_text, held_out_text = texts
    device = learning_text.device
    model = CharGPT(options.alphabet, options.length, options.width, options.depth, options.heads).to(device)
    if METHODS[method] is not None:
        eb.binarize_(model.blocks, METHODS[method](), where=eb.all_layers)
    optimizer = torch.optim.AdamW(model.parameters(), options.lr, (0.9, 0.95), weight_decay=0.0, fused=True)
    warm, steps = max(1, options.steps // 20), options.steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    starts = torch.randint(len(learning_text) - options.length, (steps, options.batch, 1)).to(device)
    within = torch.arange(options.length + 1, device=device)
    started, losses = time.perf_counter(), []
    for step in range(steps):
        loss = loss_of(model, learning_text[starts[step] + within])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if (step + 1) % max(1, steps // 5) == 0:
            spent = time.perf_counter() - started
            print(f"  {method} seed {seed} step {step + 1}/{steps}: loss {losses[-1]:.3f}, {spent:.0f} s", flush=True)
    return model, {
        "method": method,
        "seed": seed,
        "steps": steps,
        "loss": round(held_out_loss(model, held_out_text, options), 4),
        "training_loss": round(float(torch.stack(losses[-max(1, steps // 20) :]).mean()), 4),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "seconds": round(time.perf_counter() - started, 1),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
    }


def save_symbols(model: nn.Module, path: Path, settings: dict[str, object]) -> None:
    """Save a model with ±1 layers: their symbols as int8, all other tensors in float32."""
    tensors = {name: tensor.detach().float().cpu() for name, tensor in model.state_dict().items()}
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, eb.nn.BinaryLayer)}
    tensors |= {f"{name}.weight": layer.symbols().to(torch.int8).cpu() for name, layer in layers.items()}
    save_file(tensors, path, {name: str(value) for name, value in settings.items()})


def load_symbols(path: Path) -> tuple[CharGPT, str]:
    """Return a bi-half model saved by :func:`save_symbols`, and its alphabet."""
    with safe_open(path, "pt") as file:
        settings, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    sizes = (int(settings[name]) for name in ("length", "width", "depth", "heads"))
    model = CharGPT(len(settings["alphabet"]), *sizes)
    eb.binarize_(model.blocks, eb.BiHalf(), where=eb.all_layers)
    model.load_state_dict(tensors)
    return model, settings["alphabet"]


def write_text(packed: PackedModel, alphabet: str, prompt: str, count: int) -> None:
    """Generate text from a packed model on the CPU, and print it with the speed."""
    started, tokens = time.perf_counter(), []
    for token in generate(packed, [alphabet.index(character) for character in prompt], count, temperature=0.5):
        tokens.append(token)
        speed = len(tokens) / (time.perf_counter() - started)
        print(f"\r{len(tokens)} of {count} characters, {speed:.1f} per second", end="", flush=True)
    print(f"\n{prompt}{''.join(alphabet[token] for token in tokens)}")


def main() -> None:
    """Train every method with every seed, print a table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="a GPT of 10.7 million weights; take a GPU")
    parser.add_argument("--out", type=Path, help="directory for results.json and the weights of a bi-half model")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, short in SHORT.items():
        parser.add_argument(f"--{name}", type=int, help=f"default {short}, with --full {FULL[name]}")
    parser.add_argument(
        "--weights", type=Path, help="pack this saved bi-half model and generate text, without training"
    )
    parser.add_argument("--generate", type=int, default=100, metavar="N", help="characters to generate (default 100)")
    options = parser.parse_args()
    if options.weights:
        model, alphabet = load_symbols(options.weights)
        packed = eb.pack(model, torch.randint(len(alphabet), (2, model.positions.num_embeddings)))
        packed.save(options.weights.with_suffix(".ebits"))
        write_text(packed, alphabet, "Return ", options.generate)
        return
    for name, default in (FULL if options.full else SHORT).items():
        setattr(options, name, default if getattr(options, name) is None else getattr(options, name))

    text = read_text(options.characters)
    alphabet, digest = "".join(sorted(set(text))), hashlib.sha256(text.encode()).hexdigest()
    options.alphabet = len(alphabet)
    ids = {character: number for number, character in enumerate(alphabet)}
    parts = torch.tensor([ids[character] for character in text], device=options.device).chunk(100)
    held_out = torch.cat(parts[9::10])  # every tenth of a hundred parts
    texts = torch.cat([part for number, part in enumerate(parts) if number % 10 != 9]), held_out
    print(f"{len(text)} characters (SHA-256 {digest[:12]}), {len(alphabet)} different, {len(held_out)} held out")
    settings = {name: getattr(options, name) for name in (*SHORT, "lr")}
    text_facts = {"length": len(text), "sha256": digest, "alphabet": alphabet, "held_out": len(held_out)}
    runs = []
    for seed in range(options.seeds):
        for method in options.methods:
            model, run = train(method, seed, texts, options)
            runs.append(run)
            print(f"{method} seed {seed}: {run['loss']:.3f} nats per character held out, {run['seconds']:.0f} s")
            if options.out:
                options.out.mkdir(parents=True, exist_ok=True)
                report = {"settings": settings, "text": text_facts, "torch": torch.__version__, "runs": runs}
                (options.out / "results.json").write_text(json.dumps(report, indent=1) + "\n")
                if method == "bihalf" and seed == 0:
                    save_symbols(model, options.out / "bihalf.safetensors", settings | {"alphabet": alphabet})
    print("held-out loss in nats per character:")
    for method in options.methods:
        losses = [run["loss"] for run in runs if run["method"] == method]
        spread = f" ± {statistics.stdev(losses):.4f} (n = {len(losses)})" if len(losses) > 1 else ""
        print(f"{method:8} {statistics.mean(losses):.4f}{spread}")


if __name__ == "__main__":
    main()
