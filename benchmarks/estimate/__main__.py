"""``python -m benchmarks.estimate record|fit|score MEASURED TRACES``."""

from __future__ import annotations

import argparse
from pathlib import Path

from turbofix.estimate import cards


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("record", "fit", "score"))
    parser.add_argument("measured", type=Path)
    parser.add_argument("traces", type=Path)
    given = parser.parse_args()
    if given.what == "record":
        from benchmarks.estimate.networks import record

        record(given.measured, given.traces)
        return
    from benchmarks.estimate.networks import traces

    known = list(traces(given.traces))
    if given.what == "fit":
        _fit(given.measured, known)
        return
    from benchmarks.estimate import score

    print(score.HEAD)
    for each in (*score.absolute(given.measured, known), *score.compile_ratio(given.measured, known)):
        print(each.row)
    for each in score.more():
        print(each.row)
    lines, scores = score.mixed_ratio(given.measured)
    for each in scores:
        print(each.row)
    print("\n| training | full | estimated | mixed | estimated | ratio | estimated |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(lines))


def _fit(folder: Path, known: list) -> None:  # type: ignore[type-arg]
    """Write the fitted constants in place of those that are there; the others, and what each means, stay."""
    from benchmarks.estimate import fit

    found = fit.fit(folder, known)
    path = Path(cards.__file__).with_name("constants.tsv")
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name, *rest = line.split("\t")
        lines.append("\t".join([name, f"{found[name]:.4g}", *rest[1:]]) if name in found else line)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
