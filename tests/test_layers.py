"""No modules import each other in a circle; the rooms and their order are the contracts in pyproject.toml."""

import grimp


def in_circles(imports: dict[str, set[str]]) -> set[str]:
    """The modules that come back to themselves by what they import."""
    found = set()
    for module in imports:
        reached: set[str] = set()
        waiting = [module]
        while waiting:
            new = imports[waiting.pop()] - reached
            reached |= new
            waiting += new
        found |= {module} & reached
    return found


def test_modules_do_not_import_each_other_in_circles() -> None:
    graph = grimp.build_graph("turbofix", "turbofix_codemods", exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200
    assert in_circles(imports) == set()


def test_a_circle_is_found() -> None:
    straight = {"a": {"b"}, "b": {"c"}, "c": set(), "d": {"a", "c"}}
    assert in_circles(straight) == set()
    assert in_circles({**straight, "c": {"a"}, "e": {"e"}}) == {"a", "b", "c", "e"}
