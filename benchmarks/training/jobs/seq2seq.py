"""An encoder-decoder transformer that accumulates over eight batches of four."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.training.job import Job, Load, Setting


def flops(layers: int, width: int, hidden: int, source: int, target: int) -> float:
    """Of one pair, forward and backward: six for each weight and token that it sees, and 12 · width for each pair of
    tokens that attend to each other."""
    encoder = layers * (4 * width**2 + 2 * width * hidden) * source
    decoder = layers * ((6 * width**2 + 2 * width * hidden) * target + 2 * width**2 * source)
    attention = layers * width * (source**2 + target**2 + source * target)
    return 6 * (encoder + decoder) + 12 * attention


FULL = ("--train_size", "2560", "--val_size", "128", "--epochs", "2")
TINY = Load(
    (
        *("--train_size", "384", "--val_size", "32", "--d_model", "32", "--num_heads", "2", "--num_layers", "1"),
        *("--d_ff", "64", "--lr", "3e-3", "--dropout", "0.1", "--epochs", "2"),
    ),
    steps=24,
    samples=32,
)
JOB = Job(
    name="seq2seq",
    title="encoder-decoder transformer, 6 + 6 layers of 512, texts of 64 characters to 17, 8 batches of 4 to a step",
    sample="pair",
    source="6 for each weight and token, 12 · width for each pair of tokens in attention",
    # the first validation compiles, too
    full=Setting(Load(FULL, steps=160, samples=32, warm_up=84), flops(6, 512, 2048, 64, 17)),
    tiny=Setting(
        TINY, flops(1, 32, 64, 64, 17), own={"library": replace(TINY, arguments=(*TINY.arguments, "--workers", "0"))}
    ),
    loss=r"val loss (\d+\.\d+)",
    compile=(("self.model = model.to(self.device)", "self.model = torch.compile(model.to(self.device))"),),
    switches=(
        (
            "torch.manual_seed(args.seed)",
            "torch.manual_seed(args.seed)\n    torch.set_float32_matmul_precision('high')",
        ),
        (
            """        output = self.model(src, tgt[:, :-1])
        return self.criterion(""",
            """        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            output = self.model(src, tgt[:, :-1])
            return self.criterion(""",
        ),
    ),
    expects=(
        *("larger-batch", "sdpa", "autocast", "tf32", "fused-optimizer", "compile-model", "cache-preprocessing"),
        *("device-tensors", "defer-item", "throttle-logging"),
    ),
    remarks=(
        "The expert takes the 32 pairs of a step at once; all targets have one length, so the loss is the same mean.",
    ),
    silent={
        "tf32": "all passes run under autocast by then, those of the evaluation too: no product in float32 is left",
    },
)
