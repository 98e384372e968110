#!/usr/bin/env python3
"""Runs the tests of the S3 gateway against a server.

    suite.py [--list] [--times] [--areas A,B] [NAME ...]

A NAME chooses the tests in whose name it occurs. The server and its users come from the environment: BASIN_S3_ENDPOINT, and
BASIN_S3_MAIN_ and BASIN_S3_ALT_ with KEY, SECRET, ID (the canonical one), NAME (the display name) and EMAIL.

A line for each test: `ok NAME`, `FAIL NAME: reason` or `SKIPPED NAME: reason`; then the total. The exit status is 1 if one failed.
"""

import argparse
import importlib
import pathlib
import sys
import time
import traceback
import warnings

import harness

AREAS = [
    "buckets",
    "objects",
    "etag",
    "ranges",
    "headers",
    "listing",
    "versions_listing",
    "conditional",
    "delete",
    "copying",
    "multipart",
    "checksums",
    "chunked",
    "attributes",
    "tagging",
    "acl",
    "access",
    "policy",
    "public_access",
    "ownership",
    "versioning",
    "object_lock",
    "encryption",
    "cors",
    "post",
    "anonymous",
    "presigned",
    "signatures",
    "connecting",
    "lifecycle",
    "protocol",
    "malformed",
    "concurrency",
    "hosts",
    "directory",
    "appending",
    "renaming",
    "not_implemented",
    "table",
]


def tests_of(area):
    """The tests of an area in the order they are written: (name, function)."""
    module = importlib.import_module(area)
    for name, function in vars(module).items():
        if name.startswith("test_") and getattr(function, "__module__", None) == area:
            yield f"{area}.{name[5:]}", function


def reason_of(error):
    """An exception in one line. One that is no plain failure says where it came from."""
    text = " ".join(f"{error}".split()) or type(error).__name__
    if isinstance(error, harness.Failure):
        place = ""
    else:
        text = f"{type(error).__name__}: {text}" if type(error).__name__ not in text else text
        place = ""
    here = pathlib.Path(__file__).parent
    for frame in traceback.extract_tb(error.__traceback__):
        path = pathlib.Path(frame.filename)
        if path.parent == here and path.name not in ("suite.py", "harness.py"):
            place = f" [{path.name}:{frame.lineno}]"
    return text[:600] + place


def run(world, name, function):
    """Runs a test: ("ok" | "FAIL" | "SKIPPED", reason)."""
    context = harness.Context(world)
    world.done = set()
    outcome, reason = "ok", ""
    try:
        function(context)
    except harness.Skip as skip:
        outcome, reason = "SKIPPED", str(skip)
    except Exception as error:
        outcome, reason = "FAIL", reason_of(error)
    area = name.split(".")[0]
    if outcome == "SKIPPED" and reason.startswith("boto3 "):
        world.with_skips.add(area)
    elif outcome == "ok":
        for operation in world.done:
            world.shown.setdefault(operation, set()).add(area)
    try:
        context.clean()
    except Exception as error:
        if outcome != "FAIL":
            outcome, reason = "FAIL", f"cleaning up: {reason_of(error)}"
    return outcome, reason


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="names the tests and ends")
    parser.add_argument("--times", action="store_true", help="says how long each took")
    parser.add_argument("--areas", default="", help="only these areas, separated by commas")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    here = pathlib.Path(__file__).parent
    sys.path.insert(0, str(here))
    areas = chosen.areas.split(",") if chosen.areas else AREAS
    tests = [test for area in areas for test in tests_of(area)]
    tests = [test for test in tests if not chosen.names or any(part in test[0] for part in chosen.names)]
    if chosen.list:
        print("\n".join(name for name, _ in tests))
        return 0
    world = harness.World()
    if not world.is_alive():
        print(f"nothing answers at {world.endpoint}")
        return 1
    world.is_whole = areas == AREAS and not chosen.names
    counts = {"ok": 0, "FAIL": 0, "SKIPPED": 0}
    for number, (name, function) in enumerate(tests):
        began = time.monotonic()
        outcome, reason = run(world, name, function)
        took = f" ({time.monotonic() - began:.2f} s)" if chosen.times else ""
        counts[outcome] += 1
        print(f"{outcome} {name}{took}" + (f": {reason}" if reason else ""), flush=True)
        if outcome == "FAIL" and not world.is_alive():
            print(f"the server is gone after {name}; {len(tests) - number - 1} tests did not run")
            break
    print(f"{len(tests)} tests: {counts['ok']} ok, {counts['FAIL']} failed, {counts['SKIPPED']} skipped")
    return 1 if counts["FAIL"] or sum(counts.values()) < len(tests) or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
