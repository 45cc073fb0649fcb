"""A U-Net that separates blobs from their background, on pictures of 256 x 256."""

from __future__ import annotations

from benchmarks.training.job import Job, Load, Setting


def flops(size: int, width: int) -> float:
    """Of one picture, forward and backward: three times the convolutions of the forward pass."""

    def double(before: int, after: int, level: int) -> float:
        return 2 * 9 * (before * after + after * after) * (size >> level) ** 2

    widths = [width << level for level in range(5)]
    total = double(3, width, 0) + 2 * width * size**2
    for level in range(1, 5):
        below, above = widths[level], widths[level - 1]
        raised = 2 * below * above * (size >> level - 1) ** 2  # each pixel of the result has one weight of the 2 x 2
        total += double(above, below, level) + raised + double(below, above, level - 1)
    return 3 * total


FULL = ("--epochs", "5")
TINY = (
    *("--epochs", "2", "--batch-size", "4", "--pictures", "53", "--size", "32", "--width", "4"),
    *("--learning-rate", "3e-3", "--log-every", "5"),
)

JOB = Job(
    name="unet",
    title="U-Net with 31 million parameters on pictures of 256 x 256, flips made for each sample, batches of 16",
    sample="image",
    source="two for each multiplication of the convolutions (96.3 billion forward by torch.utils.flop_counter), times "
    "three",
    # the first validation compiles, too
    full=Setting(Load(FULL, steps=495, samples=16, warm_up=104), flops(256, 64)),
    tiny=Setting(
        Load(TINY, steps=24, samples=4),
        flops(32, 4),
        own={"library": Load((*TINY, "--workers", "0"), steps=24, samples=4)},
    ),
    loss=r"train loss (\d+\.\d+)",
    compile=(("    model.to(device=device)\n", "    model.to(device=device)\n    model = torch.compile(model)\n"),),
    switches=(
        (
            "    torch.manual_seed(args.seed)\n",
            "    torch.manual_seed(args.seed)\n    torch.set_float32_matmul_precision('high')\n",
        ),
        (
            (
                "            masks_pred = model(images)\n"
                "            loss = criterion(masks_pred.squeeze(1), true_masks.float())\n"
                "            loss += dice_loss(torch.sigmoid(masks_pred.squeeze(1)), true_masks.float())\n"
            ),
            (
                "            with torch.autocast(device_type=device.type, dtype=torch.bfloat16):\n"
                "                masks_pred = model(images)\n"
                "                loss = criterion(masks_pred.squeeze(1), true_masks.float())\n"
                "                loss += dice_loss(torch.sigmoid(masks_pred.squeeze(1)), true_masks.float())\n"
            ),
        ),
    ),
    expects=(
        *("autocast", "channels-last", "cudnn-benchmark", "fused-optimizer", "compile-model", "defer-item"),
        *("loader-workers", "pin-memory", "non-blocking"),
    ),
    remarks=("the expert keeps the pictures on the GPU and turns them there, where others have workers",),
)
