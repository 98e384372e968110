"""What operations.py says of each operation is what the other areas have seen, and docs/S3.md says that.

This area is the last one: it looks at what the requests of the others were answered with.
"""

import document
import importlib
import operations
import suite
from harness import Failure, Skip, check, same


def test_shown(t):
    """Each operation that is there is shown by a test of each area that is named for it; none that is not there is."""
    if not t.world.is_whole:
        raise Skip("only after all areas")
    wrong = []
    for one in operations.ALL:
        areas = t.world.shown.get(one.name, set())
        wrong += [f"{one.name}: no test of {area} shows it" for area in one.areas if area not in areas | t.world.with_skips]
        if not one.areas and areas:
            wrong.append(f"{one.name} is said not to be there, and {', '.join(sorted(areas))} did it")
    wrong += [f"{name} is not known to operations.py" for name in set(t.world.shown) - {one.name for one in operations.ALL}]
    check(not wrong, "; ".join(wrong))


def test_not_there(t):
    """What is not there answers NotImplemented, and nothing comes of it."""
    name = t.filled("k")
    before = t.main.head_object(Bucket=name, Key="k")["ETag"]
    wrong = []
    for one in operations.ALL:
        if one.areas:
            continue
        path = {"/": "/", "/b": f"/{name}", "/b/k": f"/{name}/k"}[one.of]
        query = {key: value or None for key, value in one.query.items()}
        headers = {one.header: f"{name}/k"} if one.header else {}
        answer = t.request(one.method, path, query, headers, user=t.main_user)
        code = answer.code() if answer.body else None
        if (answer.status, code) != (501, "NotImplemented"):
            wrong.append(f"{one.name}: {answer.status} {code}")
    check(not wrong, "; ".join(wrong))
    same(t.main.head_object(Bucket=name, Key="k")["ETag"], before, "ETag")


def test_all_of_boto3(t):
    """operations.py knows all operations of this boto3, but for those that are other names of one."""
    names = set(t.main.meta.service_model.operation_names)
    deprecated = {name for name in names if t.main.meta.service_model.operation_model(name).deprecated}
    unknown = sorted(names - deprecated - {one.name for one in operations.ALL})
    if unknown:
        raise Skip(f"newer than operations.py: {', '.join(unknown)}")


def test_document(t):
    """docs/S3.md has the table that follows from it."""
    rows = [["operation", "there", "tests"]]
    for one in operations.ALL:
        lacks = operations.LACKS.get(one.name, [])
        check(one.areas or not lacks, f"{one.name} is not there, and LACKS names what of it is not")
        for _, test in lacks:
            check(is_test(test), f"LACKS of {one.name} names {test}, which is no test")
        there = "NotImplemented" if not one.areas else f"partly: {', '.join(what for what, _ in lacks)}" if lacks else "yes"
        shown = one.areas + sorted({test.split(".")[0] for _, test in lacks} - set(one.areas))
        rows.append([operations.BESIDE.get(one.name, one.name), there, ", ".join(shown) or "table"])
    there = sum(bool(one.areas) for one in operations.ALL)
    partly = sum(bool(operations.LACKS.get(one.name)) for one in operations.ALL)
    text = f"{len(operations.ALL)} operations: {there} are there, {partly} of them in part; {len(operations.ALL) - there} are not.\n\n"
    document.section("operations", text + document.grid(rows))


def is_test(name):
    area, _, test = name.partition(".")
    if area not in suite.AREAS:
        raise Failure(f"there is no area {area}")
    return hasattr(importlib.import_module(area), f"test_{test}")
