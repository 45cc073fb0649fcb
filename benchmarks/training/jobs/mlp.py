"""A tabular MLP on a million rows of 64 numbers."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.training.job import Job, Load, Setting


def flops(features: int, hidden: int) -> float:
    """Of one row, forward and backward: six for each weight."""
    return 6 * (features * hidden + hidden**2 + hidden * (hidden // 2) + hidden // 2)


FULL = ("--epochs", "3")
TINY = Load(
    ("--rows", "2000", "--features", "8", "--hidden", "32", "--batch_size", "128", "--epochs", "2", "--lr", "1e-2"),
    steps=30,
    samples=1800 / 15,
)
JOB = Job(
    name="mlp",
    title="three hidden layers with BatchNorm on a million rows of 64 numbers in memory, batches of 1024",
    sample="row",
    source="six for each weight and row",
    full=Setting(Load(FULL, steps=3 * 879, samples=900_000 / 879, warm_up=900), flops(64, 512)),
    tiny=Setting(TINY, flops(8, 32), own={"library": replace(TINY, arguments=(*TINY.arguments, "--workers", "0"))}),
    loss=r"test loss (\d+\.\d+)",
    compile=(
        ("MLP(args.features, args.hidden).to(device)", "torch.compile(MLP(args.features, args.hidden).to(device))"),
    ),
    switches=(
        ("torch.manual_seed(args.seed)", "torch.manual_seed(args.seed)\ntorch.set_float32_matmul_precision('high')"),
        (
            "optimizer.zero_grad()\n        outputs = model(inputs)\n        loss = criterion(outputs, labels)\n",
            """optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16):
            outputs = model(inputs)
            loss = criterion(outputs, labels)
""",
        ),
    ),
    expects=("preload-dataset", "autocast", "tf32", "fused-optimizer", "compile-model", "defer-item"),
    anchor="150 µs a step",
    remarks=("The expert captures the whole step as one CUDA graph, for which turbofix has no codemod.",),
    silent={
        "tf32": "all passes run under autocast by then, those of the evaluation too: no product in float32 is left",
    },
)
