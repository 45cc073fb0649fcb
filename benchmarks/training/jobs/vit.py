"""A ViT-S/16 from scratch, on pictures that are cropped at random and scaled to 224 x 224."""

from __future__ import annotations

from benchmarks.training.job import Job, Load, Setting


def flops(size: int, patch: int, width: int, depth: int, classes: int) -> float:
    """Of one picture, forward and backward: three times the products of the forward pass, attention's included."""
    patches = (size // patch) ** 2
    length = patches + 1
    block = 24 * width**2 * length + 4 * length**2 * width
    return 3 * (depth * block + 2 * patches * 3 * patch**2 * width + 2 * width * classes)


FULL = ("--epochs", "5", "--train-images", "8192", "--val-images", "1024", "--warmup-steps", "20")
TINY = (
    *("--batch-size", "8", "--epochs", "2", "--train-images", "96", "--val-images", "16", "--num-classes", "10"),
    *("--img-size", "32", "--patch-size", "8", "--embed-dim", "32", "--depth", "2", "--num-heads", "2"),
    *("--lr", "2e-3", "--warmup-steps", "4", "--print-freq", "4"),
)

JOB = Job(
    name="vit",
    title="ViT-S/16 at 224 pixels, attention written by hand, crops made for each sample, batches of 256",
    sample="image",
    source="twice the multiplications of the forward pass (4.6 billion at 224 pixels, as in the DeiT paper's table of "
    "models), times three",
    # the first validation compiles, too
    full=Setting(Load(FULL, steps=160, samples=256, warm_up=36), flops(224, 16, 384, 12, 1000)),
    tiny=Setting(
        Load(TINY, steps=24, samples=8),
        flops(32, 8, 32, 2, 10),
        own={"library": Load((*TINY, "--workers", "0"), steps=24, samples=8)},
    ),
    loss=r"train loss (\d+\.\d+)",
    compile=(("    model.to(device)\n", "    model.to(device)\n    model = torch.compile(model)\n"),),
    switches=(
        (
            "    torch.manual_seed(args.seed)\n",
            "    torch.manual_seed(args.seed)\n    torch.set_float32_matmul_precision('high')\n",
        ),
        (
            "        outputs = model(samples)\n        loss = criterion(outputs, targets)\n",
            (
                "        with torch.autocast(device_type=device.type, dtype=torch.bfloat16):\n"
                "            outputs = model(samples)\n"
                "            loss = criterion(outputs, targets)\n"
            ),
        ),
    ),
    expects=(
        *("sdpa", "autocast", "fused-optimizer", "compile-model", "defer-item"),
        *("loader-workers", "pin-memory", "non-blocking"),
    ),
    anchor="5,000 images a second",
    remarks=("the expert keeps the pictures on the GPU and crops them there, where others have workers",),
)
