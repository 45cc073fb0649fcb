"""A word-level language model with two LSTM layers."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.training.job import Job, Load, Setting


def flops(vocabulary: int, width: int, hidden: int, layers: int) -> float:
    """Of one token, forward and backward: six for each weight of the four gates and of the output layer."""
    gates = 4 * hidden * (width + hidden) + (layers - 1) * 8 * hidden**2
    return 6 * (gates + hidden * vocabulary)


# 104,400 rows of 20 words in pieces of 35: the last is shorter
FULL = Load(("--epochs", "1"), steps=2983, samples=104_399 * 20 / 2983)
TINY = Load(
    (
        *("--emsize", "32", "--nhid", "32", "--vocab", "80", "--tokens", "6400", "--batch_size", "10", "--bptt", "20"),
        *("--epochs", "1", "--lr", "10"),
    ),
    steps=32,
    samples=639 * 10 / 32,
)
JOB = Job(
    name="lstm",
    title="language model, two LSTM layers of 650, a vocabulary of 33,278, 20 columns of 35 words, SGD",
    sample="token",
    source="six for each weight of the gates and of the output layer",
    full=Setting(FULL, flops(33278, 650, 650, 2)),
    tiny=Setting(
        replace(TINY, arguments=(*TINY.arguments, "--log-interval", "10")),  # so that it logs at all
        flops(80, 32, 32, 2),
        own={"library": TINY, "expert": TINY},
    ),
    loss=r"valid loss +(\d+\.\d+)",
    compile=(("args.dropout).to(device)", "args.dropout).to(device)\nmodel = torch.compile(model)"),),
    switches=(
        ("torch.manual_seed(args.seed)", "torch.manual_seed(args.seed)\ntorch.set_float32_matmul_precision('high')"),
        (
            """        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
""",
            """        with torch.autocast(device.type, dtype=torch.bfloat16):
            output, hidden = model(data, hidden)
            loss = criterion(output, targets)
""",
        ),
    ),
    expects=("autocast", "tf32", "fused-optimizer", "defer-item"),
    anchor="the speed of cuDNN's LSTM in 16 bits",
    remarks=("Under autocast cuDNN computes an LSTM in float16, in `switches` too; the expert has a scaler for that.",),
    silent={
        "fused-optimizer": "SGD without momentum and decay is one kernel for all parameters already; the expert's is "
        "fused for its scaler, which then reads nothing",
    },
)
