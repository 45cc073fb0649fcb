"""ResNet-50 at 224 pixels with 1000 classes."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.training.job import Job, Load, Setting

FULL = ("--epochs", "3", "--train-images", "8192", "--val-images", "512")
TINY = Load(
    (
        *("--train-images", "192", "--val-images", "32", "--batch-size", "16", "--epochs", "3", "--lr", "0.01"),
        *("--image-size", "32", "--classes", "5", "--width", "8", "--blocks", "1", "1", "1", "1"),
    ),
    steps=36,
    samples=16,
)
JOB = Job(
    name="resnet50",
    title="ResNet-50, 224 pixels, 1000 classes, crops and flips of pictures in memory, batches of 256, SGD",
    sample="image",
    source="three times the forward pass of 4.09 billion multiply-adds (torchvision's table of models)",
    # the first validation compiles, too
    full=Setting(Load(FULL, steps=96, samples=256, warm_up=36), 3 * 2 * 4.09e9),
    tiny=Setting(TINY, 3 * 2 * 1e6, own={"library": replace(TINY, arguments=(*TINY.arguments, "--workers", "0"))}),
    loss=r"[Vv]al loss (\d+\.\d+)",
    compile=(("args.classes).to(device)", "args.classes).to(device)\n    model = torch.compile(model)"),),
    switches=(
        (
            "torch.manual_seed(args.seed)",
            "torch.manual_seed(args.seed)\n    torch.set_float32_matmul_precision('high')",
        ),
        (
            """        # compute output
        output = model(images)
        loss = criterion(output, target)
""",
            """        # compute output
        with torch.autocast(device.type, dtype=torch.bfloat16):
            output = model(images)
            loss = criterion(output, target)
""",
        ),
    ),
    expects=(
        *("loader-workers", "pin-memory", "non-blocking", "autocast", "tf32", "channels-last", "cudnn-benchmark"),
        *("compile-model", "fused-optimizer", "defer-item"),
    ),
    anchor="3,000 images a second",
    remarks=("The expert keeps the pictures on the GPU as bytes, and crops, flips and normalises them there.",),
    silent={
        "tf32": "all passes run under autocast by then, those of the evaluation too: no product in float32 is left",
    },
)
