"""What a strategy of Lightning's trainer leaves to the script: may its optimizer be fused, its model compiled?"""

from __future__ import annotations

import pytest
from cases import case
from memory import ENTRY, MemoryWorkspace

from turbofix import registry
from turbofix.engine import pipeline
from turbofix.training.model import Target

WRITTEN = 'max_epochs=20, precision="bf16-mixed", gradient_clip_val=1.0'
SCRIPT = case("fused_optimizer/lightning_clipped").text.replace(WRITTEN, "max_epochs=500, {}")
OPTION = """\
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--strategy", default="ddp")
    parser.add_argument("--precision", default="32-true")
    options = parser.parse_args()
    trainer = """
NAMED = "from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy\n"


def said(setting: str, kind: str = "AdamW", script: str = SCRIPT) -> dict[str, list[str]]:
    """What is offered, by codemod, with the names of what it assumes."""
    text = (NAMED + script).format(setting).replace("    trainer = ", OPTION).replace("AdamW", kind)
    chosen = [each for each in registry.load() if each.name in ("fused-optimizer", "compile-model")]
    found = pipeline.analyze(ENTRY, MemoryWorkspace.of(text), chosen, Target())
    offered = [each for each in found.findings if each.fixable]
    return {each.codemod: [assumed.name for assumed in each.assumes] for each in offered}


@pytest.mark.parametrize(
    ("setting", "fused", "compiled"),
    [
        ("strategy=DDPStrategy(find_unused_parameters=True)", [], True),
        ('strategy=DDPStrategy() if options.gpus > 1 else "auto"', [], True),
        ("strategy=options.strategy", ["option-default"], True),
        ('strategy="deepspeed_stage_2" if options.gpus > 1 else "auto"', ["option-default"], True),
        ("strategy=FSDPStrategy()", [], False),
        ("strategy=DeepSpeedStrategy(stage=3)", None, False),
        ("strategy=DDPStrategy(precision_plugin=own())", None, False),
        ("strategy=own()", None, False),
    ],
)
def test_a_strategy_that_leaves_parameters_whole_takes_a_fused_optimizer(
    setting: str, fused: list[str] | None, compiled: bool
) -> None:
    offered = said(setting)
    assert offered.get("fused-optimizer") == fused
    assert ("compile-model" in offered) is compiled


def test_pieces_of_parameters_are_for_adam_alone() -> None:
    assert "fused-optimizer" not in said('strategy="fsdp"', "SGD")
    assert "fused-optimizer" in said('strategy="fsdp"', "Adam")


def test_gradients_can_be_clipped_where_an_option_leaves_full_precision() -> None:
    assert said("precision=options.precision, gradient_clip_val=1.0")["fused-optimizer"] == ["option-default"]
    assert "fused-optimizer" not in said('precision="bf16-mixed", gradient_clip_val=1.0')


@pytest.mark.parametrize(("read", "offered"), [("torch.autograd.grad(loss, images)", True), ("images.grad", False)])
def test_beside_a_scaler_gradients_are_scaled_but_those_that_autograd_is_asked_for(read: str, *, offered: bool) -> None:
    text = SCRIPT.replace("        return loss\n", f"        self.seen = {read}\n        return loss\n")
    assert ("fused-optimizer" in said('precision="16-mixed"', script=text)) is offered
