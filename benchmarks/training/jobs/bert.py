"""BERT-base, fine-tuned to tell what reviews of different lengths are about."""

from __future__ import annotations

from benchmarks.training.job import Job, Load, Setting

MEAN, SQUARED = 232.14, 299.34
"""Of the lengths of the 3,840 reviews in tokens: their mean, and the mean of their squares over that."""
TINY_MEAN, TINY_SQUARED = 20.23, 24.31


def flops(layers: int, width: int, length: float) -> float:
    """Of one real token, forward and backward: six for each weight of a matrix, and 12 · layers · width · length."""
    return 6 * 12 * layers * width**2 + 12 * layers * width * length


FULL = ("--train_reviews", "3840", "--eval_reviews", "512", "--epochs", "2")
TINY = (
    *("--train_reviews", "96", "--eval_reviews", "16", "--max_length", "48", "--vocab_size", "2000"),
    *("--hidden_size", "32", "--layers", "2", "--heads", "2", "--batch_size", "8", "--lr", "5e-3"),
    *("--epochs", "2"),
)

JOB = Job(
    name="bert",
    title="BERT-base fine-tuning, attention and GELU written by hand, 8 to 512 tokens padded to the longest of 64",
    sample="token",
    source="6 N + 12 · layers · width · length a real token, as PaLM's appendix B counts (N without embeddings; the "
    "length is the mean square over the mean, since a token meets those of its own review)",
    # the first validation compiles, too
    full=Setting(Load(FULL, steps=120, samples=64 * MEAN, warm_up=64), flops(12, 768, SQUARED)),
    tiny=Setting(
        Load(TINY, steps=24, samples=8 * TINY_MEAN),
        flops(2, 32, TINY_SQUARED),
        own={"library": Load((*TINY, "--workers", "0"), steps=24, samples=8 * TINY_MEAN)},
    ),
    loss=r"train loss (\d+\.\d+)",
    compile=(
        (
            "        self.model = model.to(self.device)\n",
            "        self.model = torch.compile(model.to(self.device))\n",
        ),
    ),
    switches=(
        (
            "    torch.manual_seed(args.seed)\n",
            "    torch.manual_seed(args.seed)\n    torch.set_float32_matmul_precision('high')\n",
        ),
        (
            "            loss, logits = self.model(**batch)\n\n            self.model.zero_grad()\n",
            (
                "            with torch.autocast(device_type=self.device.type, dtype=torch.bfloat16):\n"
                "                loss, logits = self.model(**batch)\n\n"
                "            self.model.zero_grad()\n"
            ),
        ),
    ),
    expects=(
        *("sdpa", "native-ops", "autocast", "fused-optimizer", "compile-model", "defer-item"),
        *("pin-memory", "non-blocking", "dynamic-padding"),
    ),
    anchor="35 % MFU on real tokens",
    remarks=(
        (
            "only tokens of reviews are counted, not padding; the expert computes none (reviews lie one behind "
            "another, and attention knows where each begins), for batches of 64 reviews as well"
        ),
    ),
    silent={
        "compile-model": "1,170 steps by default do not earn a minute of compiling back",
    },
)
