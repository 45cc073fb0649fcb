"""A model whose layers follow each other, and its step, as a pipeline of several processes needs them."""

from __future__ import annotations

import ast

from turbofix.dataflow.questions import Analysis
from turbofix.regex import regex
from turbofix.source.answers import every
from turbofix.source.names import dotted
from turbofix.source.nodes import walk
from turbofix.source.site import Site
from turbofix.training.model import Model, Parallel, Staged, Step
from turbofix.training.parallel.parallel import alike
from turbofix.training.parallel.wrapping import NotWrapped

SEQUENCE = "torch.nn.Sequential"
_MEANS = frozenset(
    f"torch.nn.{name}"
    for name in ("CrossEntropyLoss", "NLLLoss", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BCEWithLogitsLoss")
) | frozenset(
    f"torch.nn.functional.{name}"
    for name in ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
)
"""Losses that are means over the samples where they are told nothing else."""
_MIXING = regex(r"(Lazy|Sync)?BatchNorm|LSTM|GRU|RNN|Transformer|MultiheadAttention")
"""Layers that know of the whole batch, or may take another dimension than the first for it."""
_ITS_OWN = frozenset(("train", "zero_grad", "parameters"))
_MOVES = frozenset(("to", "cuda", "float", "apply", "load_state_dict"))


def staged(analysis: Analysis, models: tuple[Model, ...], steps: tuple[Step, ...]) -> Staged | None:
    """What a pipeline needs; None where no steps of the program's own are seen."""
    if not steps:
        return None
    trained = [each for each in models if each.site in steps[0].models] or models
    at = trained[0].site if trained else steps[0].loop.site
    try:
        if len(trained) != 1 or len(steps) > 1:
            raise NotWrapped("its steps do not train one model", at)
        return _Stages(analysis, trained[0], steps[0]).found()
    except NotWrapped as found:
        return Staged(at, hazard=found.hazard)


class _Stages:
    """One model and its step, in the syntax of the file that holds both."""

    def __init__(self, analysis: Analysis, model: Model, step: Step) -> None:
        self.analysis, self.model, self.step = analysis, model, step
        self.places = analysis.facts.places
        entry = analysis.execution.entry
        self.module = next(
            (each for each in analysis.execution.modules.values() if each.path == model.site.path), entry
        )

    def refuse(self, why: str, at: ast.AST | Site) -> NotWrapped:
        return NotWrapped(why, at if isinstance(at, Site) else self.places.site(at, self.module))

    def found(self) -> Staged:
        """All of it. Raises NotWrapped."""
        step, model = self.step, self.model
        self._plain()
        made = self._call(model.site)
        statement = self.places.statement(made, self.module)
        layers = self._layers(made)
        if (
            not isinstance(statement, ast.Assign)
            or not isinstance(statement.targets[0], ast.Name)
            or _moved(statement.value) is not made
        ):
            raise self.refuse("it has no name of its own where it is made", model.site)
        name = statement.targets[0].id
        scope = self.places.scope(made, self.module)
        reads = [each for each in walk(scope) if isinstance(each, ast.Name) and each.id == name and _is_read(each)]
        optimizer = self._call(step.updates[0].optimizer)
        given = optimizer.args[0] if optimizer.args else None
        taken = given.func.value if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) else None
        if taken not in reads or dotted(given.func) != f"{name}.parameters":  # type: ignore[union-attr]
            raise self.refuse(f"its optimizer is not given `{name}.parameters()` alone", optimizer)
        making = self._statement(optimizer)
        for one in (one for one in walk(scope) if isinstance(one, ast.Name) and one.id == name and not _is_read(one)):
            again = self._statement(one)
            moves = isinstance(again, ast.Assign) and _moved(again.value) in reads
            if again is not statement and not moves:
                raise self.refuse(f"`{name}` is also the name of something else", one)
        region, call, loss, criterion = self._step(name)
        together = alike(self.analysis, step.loop.site)
        saves = []
        for read in reads:
            above = self.places.parent(read, self.module)
            method = above.attr if isinstance(above, ast.Attribute) else ""
            if read is call.func or read is taken or (method in _ITS_OWN and not self._in_step(read, method)):
                continue
            if method in _MOVES and read.lineno < making.lineno:
                continue
            run = self._run_with(read, together)
            if method != "state_dict" or run is None:
                raise self.refuse(
                    f"`{name}` is also used otherwise than by its step, for which no process has it whole", read
                )
            saves.append(run)
        self._unread(region, call)
        for each in every(ast.Attribute, self.module.tree):
            if each.attr in ("state_dict", "load_state_dict") and dotted(each.value) != name:
                raise self.refuse("the state of its optimizer is kept, of which each process would have a part", each)
        return Staged(
            model.site,
            f"{name}{layers}",
            self.places.site(making, self.module),
            self.places.site(taken, self.module),
            self.places.site(region[0], self.module),
            self.places.site(region[-1], self.module),
            loss,
            self.places.text(call.args[0], self.module),
            self.places.text(criterion.args[1], self.module),
            self.places.text(criterion.func, self.module),
            tuple(self.places.text(each, self.module) for each in region if _clears(each)),
            tuple(dict.fromkeys(saves)),
            together,
        )

    def _plain(self) -> None:
        """Raise NotWrapped for a step that does more than one backward pass and one update in full precision."""
        step, model = self.step, self.model
        if len(step.backwards) != 1 or len(step.updates) != 1 or step.accumulation is not None:
            raise self.refuse("its step is more than one backward pass and one update", step.loop.site)
        if step.clips or step.grad_reads:
            raise self.refuse("its step reads gradients, of which each process would have a part", step.loop.site)
        if step.autocast is not None or step.updates[0].scaled:
            raise self.refuse("its step is in mixed precision, which stages do not hand on", step.loop.site)
        for each in every(ast.Attribute, self.module.tree):
            if each.attr in ("requires_grad", "requires_grad_"):
                raise self.refuse("its stages hand gradients on, and parameters may be frozen", each)
        if not model.layers_complete:
            raise self.refuse("not all of its layers are seen", model.site)
        mixing = sorted(each for each in model.layers if _MIXING.match(each.rpartition(".")[2]))
        if mixing:
            raise self.refuse(f"`{mixing[0].rpartition('.')[2]}` does not see samples one by one", model.site)

    def _run_with(self, read: ast.Name, together: Parallel) -> Site | None:
        """The statement in which a name is read for what one process does for all."""
        site = self.places.site(self._statement(read), self.module)
        lines = (each.line for each in together.made if each.path == site.path)
        return site if any(site.line <= line <= site.end_line for line in lines) else None

    def _call(self, site: Site | None) -> ast.Call:
        for call in every(ast.Call, self.module.tree):
            if site is not None and self.places.site(call, self.module) == site:
                return call
        raise self.refuse("its model, optimizer and step do not stand in one file", self.step.loop.site)

    def _statement(self, node: ast.AST) -> ast.stmt:
        found = self.places.statement(node, self.module)
        assert found is not None
        return found

    def _layers(self, made: ast.Call) -> str:
        """How the sequence is called, behind the model's name. Raises NotWrapped for a model that is none."""
        if self.analysis.facts.offered(made.func, self.module) == SEQUENCE:
            return ""
        called = dotted(made.func)
        cls = next(
            (each for each in self.module.tree.body if isinstance(each, ast.ClassDef) and each.name == called), None
        )
        methods = {each.name: each for each in cls.body if isinstance(each, ast.FunctionDef)} if cls is not None else {}
        forward, init = methods.get("forward"), methods.get("__init__")
        if forward is not None and init is not None:
            name = _runs(forward)
            for each in (one for one in walk(init) if isinstance(one, ast.Assign)):
                makes = (
                    isinstance(each.value, ast.Call) and name is not None and dotted(each.targets[0]) == f"self.{name}"
                )
                if makes and self.analysis.facts.offered(each.value.func, self.module) == SEQUENCE:  # type: ignore[attr-defined]
                    return f".{name}"
        raise self.refuse("it is no `nn.Sequential`, and its `forward` does more than to run one", made)

    def _step(self, name: str) -> tuple[list[ast.stmt], ast.Call, str, ast.Call]:
        """The statements from the forward to the backward pass, and what is in them. Raises NotWrapped."""
        backward = self._statement(self._call(self.step.backwards[0].site))
        block = self.places.block(backward, self.module)
        loop = self.places.parent(backward, self.module)
        calls = [each for each in every(ast.Call, self.module.tree) if dotted(each.func) == name]
        if loop is None or self.places.site(loop, self.module) != self.step.loop.site or backward not in block:
            raise self.refuse("its backward pass does not stand in the loop over batches itself", backward)
        if len(calls) != 1 or len(calls[0].args) != 1 or calls[0].keywords or self._statement(calls[0]) not in block:
            raise self.refuse(
                f"`{name}` is not called once, in its step, with one argument", calls[-1] if calls else loop
            )
        (call,) = calls
        region = block[block.index(self._statement(call)) : block.index(backward) + 1]
        loss = dotted(backward.value.func.value) if _is_call_of(backward, "backward") else None  # type: ignore[attr-defined]
        between = [each for each in region[:-1] if not _clears(each)]
        last = between[-1] if between else None
        criterion = last.value if isinstance(last, ast.Assign) else None
        given = call if len(between) == 1 else _set_by(between[0], call) if len(between) == 2 else None
        if (
            not isinstance(criterion, ast.Call)
            or not isinstance(last, ast.Assign)
            or loss is None
            or dotted(last.targets[0]) != loss
            or len(criterion.args) != 2
            or criterion.keywords
            or not (criterion.args[0] is given or (isinstance(given, str) and dotted(criterion.args[0]) == given))
        ):
            raise self.refuse("between model and backward pass stands more than a loss of its result and targets", call)
        if not self.step.loss.qualnames or not _MEANS.issuperset(self.step.loss.qualnames) or self._told(criterion):
            raise self.refuse("its loss is not known to be a mean over the samples", criterion)
        return region, call, loss, criterion

    def _told(self, criterion: ast.Call) -> bool:
        """Whether a criterion is made with options: how it reduces, or weights."""
        name = dotted(criterion.func)
        made = (each.value for each in every(ast.Assign, self.module.tree) if dotted(each.targets[0]) == name)
        return any(isinstance(one, ast.Call) and (one.args or one.keywords) for each in made for one in walk(each))

    def _in_step(self, read: ast.Name, method: str) -> bool:
        """Whether a step goes through parameters by hand."""
        if method != "parameters":
            return False
        return any(
            self.places.site(each, self.module) == self.step.loop.site
            for each in self.places.ancestors(read, self.module)
        )

    def _unread(self, region: list[ast.stmt], call: ast.Call) -> None:
        """Raise NotWrapped where something else reads what the model gave: no process but the last has it."""
        statement = self._statement(call)
        target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is call else None
        inside = {id(each) for one in region for each in walk(one)}
        for each in walk(self.places.scope(call, self.module)) if target is not None else ():
            if isinstance(each, ast.Name) and each.id == dotted(target) and _is_read(each) and id(each) not in inside:
                raise self.refuse(f"`{each.id}` is read beside the loss, and one process alone has it", each)


def _moved(value: ast.AST) -> ast.AST:
    """What a value is before it is moved."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _MOVES:
        value = value.func.value
    return value


def _is_read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _is_call_of(statement: ast.stmt, method: str) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == method
        and not value.args
    )


def _clears(statement: ast.stmt) -> bool:
    return _is_call_of(statement, "zero_grad")


def _set_by(statement: ast.stmt, call: ast.Call) -> str | None:
    """The name that a statement gives what a call gives."""
    return dotted(statement.targets[0]) if isinstance(statement, ast.Assign) and statement.value is call else None


def _runs(forward: ast.FunctionDef) -> str | None:
    """The attribute that a forward pass runs its argument through, and nothing else."""
    body = [each for each in forward.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    value = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
    names = [each.arg for each in forward.args.args]
    if isinstance(value, ast.Call) and len(names) == 2 and [dotted(each) for each in value.args] == names[1:]:
        head, _, name = (dotted(value.func) or "").partition(".")
        return name if head == names[0] and not value.keywords else None
    return None
