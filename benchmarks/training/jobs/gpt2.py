"""GPT-2 with 124 million parameters, from scratch: 12 layers, 768 wide, windows of 1024 tokens."""

from __future__ import annotations

from benchmarks.training.job import Job, Load, Setting


def flops(layers: int, width: int, length: int, vocabulary: int) -> float:
    """Of one token, forward and backward: six for each weight of a matrix, and what attention takes."""
    return 6 * (12 * layers * width**2 + vocabulary * width) + 12 * layers * width * length


FULL = ("--train-windows", "1920", "--val-windows", "64", "--epochs", "1")
JOB = Job(
    name="gpt2",
    title="GPT-2 124M, attention and GELU written by hand, 1024 tokens, batches of 16",
    sample="token",
    source="6 N + 12 · layers · width · length a token, as PaLM's appendix B counts (N with the tied output layer, "
    "without embeddings)",
    full=Setting(Load(FULL, steps=120, samples=16 * 1024), flops(12, 768, 1024, 50304)),
    tiny=Setting(
        Load(
            (
                *("--layers", "2", "--heads", "2", "--width", "32", "--block-size", "32", "--vocab-size", "128"),
                *("--batch-size", "4", "--train-windows", "48", "--val-windows", "8", "--epochs", "2", "--lr", "3e-3"),
            ),
            steps=24,
            samples=4 * 32,
        ),
        flops(2, 32, 32, 128),
        own={
            "library": Load(
                (
                    *("--layers", "2", "--heads", "2", "--width", "32", "--block-size", "32", "--vocab-size", "128"),
                    *("--batch-size", "4", "--train-windows", "48", "--val-windows", "8", "--epochs", "2"),
                    *("--lr", "3e-3", "--workers", "0"),
                ),
                steps=24,
                samples=4 * 32,
            )
        },
    ),
    loss=r"val loss (\d+\.\d+)",
    compile=(("model.to(device)\n", "model.to(device)\nmodel = torch.compile(model)\n"),),
    switches=(
        ("torch.manual_seed(args.seed)", "torch.manual_seed(args.seed)\ntorch.set_float32_matmul_precision('high')"),
        (
            "()\n        logits, loss = model(x, y)",
            "()\n        with torch.autocast(device, dtype=torch.bfloat16):\n            logits, loss = model(x, y)",
        ),
    ),
    expects=(
        *("sdpa", "native-ops", "autocast", "tf32", "fused-optimizer", "compile-model"),
        *("preload-dataset", "throttle-logging"),
    ),
    anchor="380,000 tokens a second",
    silent={
        "tf32": "all passes run under autocast by then, those of the evaluation too: no product in float32 is left",
    },
)
