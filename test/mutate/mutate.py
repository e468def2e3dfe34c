#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants small faults in a copy of the headers and shows which of them no test notices.

    mutate.py [FOLDER] [--seconds T]   what ./run mutate calls; with FOLDER, the mutants of include/stagger/FOLDER
                                       against the programs of that folder
    mutate.py --check                  only: the text of each mutant stands in the headers exactly once
    mutate.py --table                  only: what is known so far, as the table of docs/testing.md

A mutant is a block of test/mutate/*.mutants:

    = what is wrong, in a few words
    @ sync                             (optional) a memory order or a synchronisation
    @ equivalent: why                  (optional) changes nothing that a caller could see; not counted
     a line of a header                context, for a text that would otherwise stand twice
    -a line of a header                what the mutant takes away
    +a line that contains MUTANT       what stands there instead; MUTANT is true while the mutant is on

Neither indentation nor blank lines count, and no file is named, so mutants survive moves of files. All of them go into one copy, which is
compiled once; a program asks the environment which mutant is on. A run without mutants finds out which test reaches
which mutant; then each mutant meets the tests that reach it, the shortest first, until one fails or hangs. The
thread sanitizer is asked about what survives that. Everything is kept in build/mutate: a run that was broken off goes
on where it stopped, and after a change of the sources the test that found a mutant before is asked first.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADERS = ROOT / "include" / "stagger"
BUILD = ROOT / "build" / "mutate"
AIM = 0.95


def fail(words):
    sys.exit(f"mutate: {words}")


# --- the mutants

class Mutant:
    def __init__(self, where, title):
        self.where, self.title = where, title  # where the block stands, for messages
        self.sync, self.equivalent = False, None
        self.lines = []  # (' ', '-' or '+', text)

    def finish(self):
        old = [text for sign, text in self.lines if sign != "+"]
        new = [text for sign, text in self.lines if sign == "+"]
        if not old:
            fail(f"{self.where}: '{self.title}' names no line of a header")
        if not any("MUTANT" in text for text in new) and self.equivalent is None:
            fail(f"{self.where}: '{self.title}' has no line with + that contains MUTANT")
        signs = "".join(sign for sign, _ in self.lines)
        if "-" in signs and " +" in signs:
            fail(f"{self.where}: '{self.title}' puts a line behind context, not where it takes one away")
        self.id = zlib.crc32("\n".join(sign + text for sign, text in self.lines).encode())
        self.name = f"{self.id:08x}"

    def find(self, headers):
        """Sets the file and the edits: [(line, that it is taken away, the lines put in front of it)]."""
        old = [text for sign, text in self.lines if sign != "+"]
        places = []
        for path, lines in headers.items():
            texts = [text for _, text in lines]
            for i in range(len(texts) - len(old) + 1):
                if texts[i] == old[0] and texts[i:i + len(old)] == old:
                    places.append((path, i))
        if len(places) != 1:
            found = ", ".join(f"{p.relative_to(ROOT)}:{headers[p][i][0] + 1}" for p, i in places) or "nowhere"
            return f"{self.where}: the text of '{self.title}' must stand in the headers exactly once; found: {found}"
        self.path, at = places[0]
        self.folder = self.path.relative_to(HEADERS).parts[0] if self.path.parent != HEADERS else "."
        lines = headers[self.path]
        self.at = lines[at][0]
        self.edits, new = [], []
        for sign, text in self.lines + [(" ", None)]:
            if sign == "+":
                new.append(text.replace("MUTANT", f"::stagger_mutant<0x{self.id:08x}U>()"))
                continue
            line = lines[at][0] if at < len(lines) else lines[-1][0] + 1
            if new or sign == "-":
                self.edits.append((line, sign == "-", new))
                new = []
            at += 1
        ifs = sum((sign == "+") - (sign == "-") for sign, text in self.lines if re.search(r"\bif\b.*;$", text))
        if ifs > 0 and at - 1 < len(lines) and lines[at - 1][1].startswith("else"):
            return f"{self.where}: '{self.title}' adds an if that takes the else after it; write it with ?: or braces"
        return None


def read_mutants():
    mutants = []
    for file in sorted((ROOT / "test" / "mutate").glob("*.mutants")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            where = f"{file.relative_to(ROOT)}:{number}"
            if line.startswith("="):
                mutants.append(Mutant(where, line[1:].strip()))
            elif not line.strip() or line.startswith("#"):
                continue
            elif not mutants:
                fail(f"{where}: a block begins with '= what is wrong'")
            elif line.strip() == "@ sync":
                mutants[-1].sync = True
            elif line.startswith("@ equivalent:"):
                mutants[-1].equivalent = line.split(":", 1)[1].strip()
            elif line[0] in " -+":
                mutants[-1].lines.append((line[0], line[1:].strip()))
            else:
                fail(f"{where}: a line begins with '=', '@', ' ', '-' or '+', not with '{line[0]}'")
    for mutant in mutants:
        mutant.finish()
    headers = {path: [(number, line.strip()) for number, line in enumerate(path.read_text().splitlines()) if line.strip()]
               for path in sorted(HEADERS.rglob("*.hpp"))}
    wrong = [words for words in (mutant.find(headers) for mutant in mutants) if words]
    taken = {}
    for mutant in mutants:
        for line, away, _ in getattr(mutant, "edits", []):
            other = taken.setdefault((mutant.path, line), mutant) if away and mutant.equivalent is None else mutant
            if other is not mutant:
                wrong.append(f"{mutant.where}: '{mutant.title}' changes the same line as '{other.title}'")
    names = {}
    for mutant in mutants:
        if names.setdefault(mutant.name, mutant) is not mutant:
            wrong.append(f"{mutant.where}: '{mutant.title}' stands there twice")
    if wrong:
        fail("\nmutate: ".join(wrong))
    return mutants


# --- the copy

def write_if_new(path, content):
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def make_copy(mutants):
    """@return a number of the sources: it changes where a result may change"""
    edits = {}
    for mutant in mutants:
        if mutant.equivalent is None:
            for edit in mutant.edits:
                edits.setdefault(mutant.path, []).append(edit)
    names = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True).stdout.decode().split("\0")
    names = sorted({name for name in names if name and (ROOT / name).is_file()})
    digest = hashlib.sha256()
    for name in names:
        source = ROOT / name
        content = source.read_bytes()
        if source in edits:
            lines = content.decode().splitlines()
            for line, away, new in sorted(edits[source], reverse=True):
                lines[line:line + away] = new
            once = next(i for i, line in enumerate(lines) if line.strip() == "#pragma once")
            lines.insert(once + 1, f'#include "{ROOT}/test/mutate/mutant.hpp"')
            content = ("\n".join(lines) + "\n").encode()
        if name.startswith(("include/", "test/", "examples/", "cmake/", "CMakeLists.txt")):
            digest.update(name.encode() + b"\0" + content + b"\0")
        write_if_new(BUILD / "source" / name, content)
    kept = {BUILD / "source" / name for name in names}
    for path in (BUILD / "source").rglob("*"):
        if path.is_file() and path not in kept:
            path.unlink()
    return digest.hexdigest()


def build(kind, folder):
    """Builds what kind ('plain' or 'thread') asks for. @return the build folder"""
    target = BUILD / kind
    settings = {"plain": ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1"],
                "thread": ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_COMPILER=clang++-19", "-DSTAGGER_SANITIZE=thread"]}
    # -w: a mutant may leave a variable without a use.
    command = ["cmake", "-S", BUILD / "source", "-B", target, *settings[kind], "-DCMAKE_CXX_FLAGS=-w", "-DSTAGGER_BUILD_TESTS=ON",
               "-DSTAGGER_BUILD_EXAMPLES=ON", "-DSTAGGER_BUILD_BENCHMARKS=OFF", "-DSTAGGER_HEADER_COMPILERS="]
    if shutil.which("ninja"):
        command += ["-G", "Ninja"]
    log = BUILD / f"{kind}.log"
    with log.open("w") as out:
        if subprocess.run(command, stdout=out, stderr=out).returncode:
            fail(f"configuring {kind} failed; see {log}")
        known = subprocess.run(["cmake", "--build", target, "--target", "help"], capture_output=True, text=True).stdout
        targets = [f"unit_{folder}"] if folder else ["unit", "fuzz"]
        if not folder or folder == "mpi":
            targets += re.findall(r"\b(mpi_\w*tests)\b", known)
        targets = [name for name in dict.fromkeys(targets) if re.search(rf"\b{name}\b", known)]
        if targets and subprocess.run(["cmake", "--build", target, "-j", str(os.cpu_count()), "--target", *targets],
                                      stdout=out, stderr=out).returncode:
            fail(f"building {kind} failed; see {log}")
    return target


# --- running

class Test:
    def __init__(self, entry):
        properties = {p["name"]: p["value"] for p in entry.get("properties", [])}
        self.name = entry["name"]
        self.command = entry.get("command", [])
        self.environment = dict(line.split("=", 1) for line in properties.get("ENVIRONMENT", []))
        self.folder = properties.get("WORKING_DIRECTORY", ".")
        labels = properties.get("LABELS", [])
        self.several = "mpi" in labels  # processes
        judged_by_words = {"PASS_REGULAR_EXPRESSION", "FAIL_REGULAR_EXPRESSION", "FIXTURES_REQUIRED", "FIXTURES_SETUP"}
        self.usable = (bool(self.command) and not judged_by_words & properties.keys() and not properties.get("DISABLED")
                       and bool({"unit", "mpi", "fuzz"} & set(labels)) and "example" not in labels)  # examples are not built

    def run(self, limit_s, **environment):
        """@return 'passed', 'failed' or 'hung', and the seconds"""
        start = time.monotonic()
        process = subprocess.Popen(self.command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, start_new_session=True,
                                   env={**os.environ, **self.environment, **environment})
        try:
            result = "passed" if process.wait(limit_s) == 0 else "failed"
        except subprocess.TimeoutExpired:
            result = "hung"
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what it started may live on
        except ProcessLookupError:
            pass
        process.wait()
        return result, time.monotonic() - start


def tests_of(target, folder):
    listed = subprocess.run(["ctest", "--test-dir", target, "--show-only=json-v1"], capture_output=True, text=True)
    tests = [Test(entry) for entry in json.loads(listed.stdout)["tests"]]
    prefix = f"unit.{folder}/" if folder and folder != "mpi" else "mpi." if folder else ""
    return [test for test in tests if test.usable and test.name.startswith(prefix)]


class Store:
    """What is known, on disk after each answer."""

    def __init__(self, sources):
        self.path = BUILD / "results.json"
        self.data = {"sources": sources, "baseline": {}, "mutants": {}}
        try:
            before = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return
        if before.get("sources") == sources:
            self.data = before
            return
        for name, known in before.get("mutants", {}).items():
            hint = next((known[kind]["by"] for kind in ("plain", "thread") if known.get(kind, {}).get("by")), known.get("hint"))
            self.data["mutants"][name] = {"hint": hint}

    def save(self):
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.data, indent=1))
        new.replace(self.path)

    def of(self, mutant):
        return self.data["mutants"].setdefault(mutant.name, {})


def find_reach(store, kind, tests, until):
    """Each test once without a mutant: how long it takes and which mutants it reaches."""
    known = store.data["baseline"].setdefault(kind, {})
    missing = [test for test in tests if test.name not in known]
    reached = BUILD / "reached"
    reached.mkdir(parents=True, exist_ok=True)

    def ask(test):
        if time.monotonic() > until:
            return
        file = reached / f"{os.getpid()}-{zlib.crc32(test.name.encode()):08x}"
        file.write_text("")
        result, seconds = test.run(900, STAGGER_MUTANTS_REACHED=str(file))
        known[test.name] = {"passed": result == "passed", "seconds": seconds,
                            "reaches": sorted(set(file.read_text().split()))}
        file.unlink()
        if result != "passed":
            print(f"mutate: without any mutant, {test.name} has {result}; it is not asked")

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(ask, missing))
    store.save()
    return known


def run_tests_of(store, kind, mutants, tests, until):
    """Runs the tests that reach each mutant."""
    baseline = find_reach(store, kind, tests, until)
    by_name = {test.name: test for test in tests}

    def ask(mutant):
        known = store.of(mutant)
        state = json.loads(json.dumps(known.get(kind, {"by": None, "tried": []})))
        if state["by"]:
            return state
        tried = set(state["tried"])
        names = [name for name in by_name if name in baseline and baseline[name]["passed"] and
                 mutant.name in baseline[name]["reaches"] and name not in tried]
        names.sort(key=lambda name: (name != known.get("hint"), by_name[name].several, baseline[name]["seconds"]))
        for name in names:
            if time.monotonic() > until:
                break
            result, _ = by_name[name].run(10 + 10 * baseline[name]["seconds"], STAGGER_MUTANT=mutant.name)
            if result == "passed":
                state["tried"].append(name)
            else:
                state["by"], state["how"] = name, result
                break
        else:
            state["complete"] = True
        print(f"  {kind}: {mutant.folder}: {mutant.title}: " + (f"{state['how']}: {state['by']}" if state["by"] else
              f"survived {len(state['tried'])} tests" if state.get("complete") else "not finished"), flush=True)
        return state

    for mutant in mutants:
        store.of(mutant)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        asked = {pool.submit(ask, mutant): mutant for mutant in mutants if time.monotonic() < until}
        for done in concurrent.futures.as_completed(asked):
            store.of(asked[done])[kind] = done.result()  # here alone, since what is written to disk may not change meanwhile
            store.save()


# --- what came out

def verdict(known):
    for kind in ("plain", "thread"):
        if known.get(kind, {}).get("by"):
            return "killed", kind, known[kind]["by"]
    if known.get("plain", {}).get("complete"):
        return "survived", None, f"{len(known['plain']['tried'])} tests"
    return "open", None, ""


def table(mutants, store):
    columns = ["plain", "thread", "equivalent", "survived", "open"]
    rows = {}
    for mutant in mutants:
        row = rows.setdefault(mutant.folder, dict.fromkeys(columns, 0))
        result, kind, _ = ("equivalent", None, "") if mutant.equivalent is not None else verdict(store.of(mutant))
        row[kind if result == "killed" else result] += 1
    total = {key: sum(row[key] for row in rows.values()) for key in columns}
    shown = columns if total["open"] else columns[:-1]
    heads = {"plain": "noticed plainly", "thread": "by the thread sanitizer alone", "open": "not asked yet"}
    text = ["| folder | mutants | " + " | ".join(heads.get(key, key) for key in shown) + " |", "|---|--:" + "|--:" * len(shown) + "|"]
    for folder, row in [*sorted(rows.items()), ("all", total)]:
        text.append(f"| {folder} | {sum(row.values())} | " + " | ".join(str(row[key]) for key in shown) + " |")
    noticed = total["plain"] + total["thread"]
    asked = noticed + total["survived"]
    return "\n".join(text), noticed / asked if asked else 0, asked, total["open"]


def main():
    parser = argparse.ArgumentParser(prog="./run mutate", description="Which small faults in the headers does no test notice?")
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="only the mutants of include/stagger/FOLDER, against its own programs")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="T", help="stop after T seconds; the next run goes on")
    parser.add_argument("--check", action="store_true", help="only look whether each mutant's text stands in the headers exactly once")
    parser.add_argument("--table", action="store_true", help="only print what is known so far")
    given = parser.parse_args()
    if not given.seconds > 0:
        parser.error(f"--seconds {given.seconds:g}: give a number above 0")
    mutants = read_mutants()
    if given.check:
        print(f"mutate: {len(mutants)} mutants, each at one place")
        return 0
    folders = sorted({mutant.folder for mutant in mutants})
    if given.folder and given.folder not in folders:
        parser.error(f"there are no mutants in '{given.folder}'; there are in: {', '.join(folders)}")
    until = time.monotonic() + given.seconds
    BUILD.mkdir(parents=True, exist_ok=True)
    store = Store(make_copy(mutants))
    chosen = [m for m in mutants if m.equivalent is None and given.folder in (None, m.folder)]
    if not given.table:
        print(f"mutate: building the tests with {len(chosen)} mutants: about 15 minutes on two idle cores for all "
              "folders, a few for one; trying all mutants takes 30 more", flush=True)
        target = build("plain", given.folder)
        tests = tests_of(target, given.folder)
        # A program that was not built, as where torch is missing, says nothing of its folder.
        gone = {folder for folder in folders if given.folder in (None, folder) and folder not in (".", "mpi")
                and (ROOT / "test" / "unit" / folder).is_dir() and not any(test.name.startswith(f"unit.{folder}/") for test in tests)}
        if gone:
            print(f"mutate: not asked, since their programs were not built: {', '.join(sorted(gone))}", flush=True)
        mutants = [m for m in mutants if m.folder not in gone]
        chosen = [m for m in chosen if m.folder not in gone]
        run_tests_of(store, "plain", chosen, tests, until)
        left = [m for m in chosen if verdict(store.of(m))[0] == "survived"]
        if left and time.monotonic() < until:
            print(f"mutate: {len(left)} survived; building for the thread sanitizer", flush=True)
            target = build("thread", given.folder)
            tests = tests_of(target, given.folder)
            quiet = subprocess.run(["setarch", "-R", "true"], stderr=subprocess.DEVNULL).returncode == 0
            for test in tests:  # where addresses are drawn from more bits than it can map, programs do not start
                test.command = ["setarch", "-R", *test.command] if quiet else test.command
            run_tests_of(store, "thread", left, tests, until)
        store.save()
    text, share, asked, open_ones = table([m for m in mutants if given.folder in (None, m.folder)], store)
    print(f"\n{text}\n")
    for mutant in chosen:
        result, kind, by = verdict(store.of(mutant))
        if result == "survived":
            print(f"survived: {mutant.path.relative_to(ROOT)}:{mutant.at + 1}: {mutant.title} ({by} reach it)")
    if open_ones:
        print(f"not asked yet: {open_ones}; the next run goes on")
    print(f"{100 * share:.1f} % of {asked} were noticed; the aim is {100 * AIM:.0f} %")
    return 0 if share >= AIM and not open_ones else 1


if __name__ == "__main__":
    sys.exit(main())
