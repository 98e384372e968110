"""docs/S3.md: the parts of it that the tests write, and compare with what they have found."""

import fcntl
import os
import pathlib
import re

from harness import Failure, Skip

PATH = pathlib.Path(__file__).parents[2] / "docs" / "S3.md"
REMEDY = "run `BASIN_S3_TABLE=write cargo test --test s3` and look at what changed"


def section(name, text, forget=None):
    """Compares a section of the document with what it should be, but for what `forget` matches; or writes it, if that is asked for."""
    with open(PATH, "r+") as file:
        # Another section may be written at the same time.
        fcntl.flock(file, fcntl.LOCK_EX)
        compare_or_write(file, name, text, forget)


def compare_or_write(file, name, text, forget):
    whole = file.read()
    frame = re.compile(rf"(<!-- {name}: [^\n]*-->\n)(.*?)(<!-- end of {name} -->)", re.DOTALL)
    found = frame.search(whole)
    if not found:
        raise Failure(f"{PATH.name} has no section '{name}'")
    if os.environ.get("BASIN_S3_TABLE") == "write":
        file.seek(0)
        file.truncate()
        file.write(frame.sub(lambda found: found[1] + "\n" + text + "\n" + found[3], whole))
        return
    old, new = (re.sub(forget, "", part).strip() if forget else part.strip() for part in (found[2], text))
    if old != new:
        lines = set(old.splitlines()) ^ set(new.splitlines())
        raise Failure(f"the section '{name}' of docs/S3.md is out of date ({REMEDY}): {sorted(lines)[:4]}")


def grid(rows):
    """Rows as a table."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]) + "\n"


def clients(columns, versions, all_names):
    """What which client does. `columns`: {client: {what: "yes" or "no REASON"}}."""
    missing = [name for name in all_names if name not in columns]
    if missing:
        raise Skip(f"docs/S3.md is not compared without {', '.join(missing)}")
    notes = []

    def cell(client, what):
        outcome, _, reason = columns[client][what].partition(" ")
        if outcome != "no":
            return outcome
        note = f"{client}: {reason}."
        if note not in notes:
            notes.append(note)
        return f"({notes.index(note) + 1})"

    rows = [["", *all_names]]
    rows += [[what, *(cell(client, what) for client in all_names)] for what in columns[all_names[0]]]
    text = "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + ".\n\n"
    text += grid(rows) + "\n" + "".join(f"{at + 1}. {note}\n" for at, note in enumerate(notes))
    section("clients", text, r"Versions: .*\n")
