"""Workers: what is stored of them, and who is dead."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy.settings import Settings

from scrapy_bloom.crawl import owners
from scrapy_bloom.crawl.owners import (
    ID_FILE,
    MAX_ARGUMENTS,
    MAX_LENGTH,
    Worker,
    queue_of,
    shown_arguments,
)

WORKER = Worker("w-1", "another-machine", 7, 99, "", "g1", 60)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def test_an_entry_is_read_back() -> None:
    long = Worker.own(f"q{'1' * 16}", f"g{'1' * 16}", "a" * MAX_ARGUMENTS, 99_999)
    for worker in (WORKER, Worker.own("q1"), long, replace(WORKER, started=-1)):
        assert Worker.parse(worker.member) == worker
        assert len(worker.member) <= MAX_LENGTH


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "w-1 here 7 99 - -",
        "w-1 here 7 99 - - 60 more",
        "w-1 here seven 99 - - 60",
        "w-1 here 7_0 99 - - 60",
        "w-1 here -7 99 - - 60",
        "w-1 here 7 99 - - -60",
        "w-1 here 7 99 - - 600000",
        " here 7 99 - - 60",
        "w-1 here 7 99 -  60",
        f"w-1 here {'7' * 5_000} 99 - - 60",
        f"w-{'1' * MAX_LENGTH} here 7 99 - - 60",
        "w-1\nx here 7 99 - - 60",
        "w-1 here \u0667 99 - - 60",
    ],
)
def test_an_entry_that_is_damaged_is_left_out(entry: str) -> None:
    assert Worker.parse(entry) is None


@given(st.text() | st.lists(st.text(st.characters(codec="ascii"))).map(" ".join))
@example(WORKER.member)
@example(f"{WORKER.member}\n")
def test_any_text_is_an_entry_that_is_written_again_or_none(entry: str) -> None:
    worker = Worker.parse(entry)
    assert worker is None or Worker.parse(worker.member) == worker


@linux
def test_a_process_that_ended_is_gone() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        worker = replace(
            Worker.own(""), pid=child.pid, started=owners._started(child.pid), queue=""
        )
        assert not worker.is_gone
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert worker.is_gone, "a zombie"
        child.wait()
        assert worker.is_gone


#: Prints its entry, and which of the entries that it reads are of processes that have ended.
NAMESAKE = """
import sys
from scrapy_bloom.crawl.owners import Worker
print(Worker.own("").member, flush=True)
for line in sys.stdin:
    print(Worker.parse(line.strip()).is_gone, flush=True)
"""
#: In a namespace of its own, in which it has number 1.
ISOLATED = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"])]
ISOLATED += ["--pid", "--fork", "--kill-child", "--mount-proc"]


@linux
def test_workers_of_two_namespaces_with_one_number_are_not_taken_for_one_another() -> None:
    """As in containers of one machine, in each of which the crawl is process 1."""
    try:
        subprocess.run([*ISOLATED, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"namespaces aren't permitted: {error}")
    command = [*ISOLATED, sys.executable, "-c", NAMESAKE]
    with (
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as one,
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as other,
    ):
        entries = [ask(process) for process in (one, other)]
        found = [Worker.parse(entry) for entry in entries]
        assert [worker and worker.pid for worker in found] == [1, 1]
        for process in (one, other):
            assert [ask(process, entry) for entry in entries] == ["False", "False"]
        assert not any(worker and worker.is_gone for worker in found)


def ask(process: "subprocess.Popen[str]", entry: str = "") -> str:
    """Return a line of a process's output, which it may write when it has read an entry."""
    assert process.stdin
    assert process.stdout
    if entry:
        process.stdin.write(f"{entry}\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


@linux
@pytest.mark.parametrize(
    ("error", "is_gone"),
    [(PermissionError, False), (ProcessLookupError, True), (OverflowError, True), (None, False)],
)
def test_a_process_that_proc_hides_is_gone_only_if_there_is_none(
    error: type[Exception] | None, is_gone: bool
) -> None:
    """``hidepid=2``, and ProtectProc of systemd, hide the processes of other users."""
    me = Worker.own("")
    no_file = patch.object(Path, "read_text", side_effect=FileNotFoundError)
    with no_file, patch.object(os, "kill", side_effect=error) as kill:
        assert me.is_gone is is_gone
    kill.assert_called_once_with(me.pid, 0)


def test_where_nothing_can_be_told_nobody_is_gone() -> None:
    assert not WORKER.is_gone
    with patch.object(owners, "_place", lambda: ""):
        assert not replace(Worker.own(""), started=1).is_gone


def test_claims_belong_to_a_queue_that_outlives_the_process() -> None:
    redis = {"SCHEDULER": "scrapy_redis.scheduler.Scheduler"}
    owners = {
        queue_of(Settings({"JOBDIR": "/jobs/a"})),
        queue_of(Settings({"JOBDIR": "/jobs/b"})),
        queue_of(Settings(redis)),
        queue_of(Settings({**redis, "SCHEDULER_QUEUE_KEY": "other:%(spider)s"})),
    }
    assert len(owners) == 4
    assert "" not in owners
    assert queue_of(Settings({"JOBDIR": "/jobs/../jobs/a/"})) in owners
    assert queue_of(Settings()) == ""
    assert Worker.own("").owner != Worker.own("").owner
    assert Worker.own("q1").owner == Worker.own("q1").owner == "q1."


@pytest.mark.parametrize(
    ("until", "lives"),
    [(940, False), (1_000, False), (1_001, True), (1_060, True), (1_061, False), (4_600, False)],
)
def test_a_worker_lives_as_long_as_its_last_heartbeat_sets_it_and_no_longer(
    until: int, lives: bool
) -> None:
    """A time that is further ahead is from before the clock was corrected."""
    assert WORKER.lives(until, 1_000) is lives


@linux
def test_a_worker_that_is_gone_does_not_live() -> None:
    me = Worker.own("", life=60)
    assert me.lives(1_060, 1_000)
    assert not replace(me, started=me.started - 1).lives(1_060, 1_000)


# -- arguments --


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({}, ""),
        ({"domain": "a"}, "domain=a"),
        ({"b": "2", "a": "1"}, "a=1&b=2"),
        ({"a": "1", "b": "2"}, "a=1&b=2"),
        ({"domain": "a", "_job": "4711"}, "domain=a"),
        ({"a": 1, "b": [True], "c": None}, "a=1&b=%5Btrue%5D&c=null"),
        ({"domain": "a", "session_id": object(), "loader": object()}, "domain=a"),
        ({"q": "a b.c=d&e~\n"}, "q=a+b.c%3Dd%26e~%0A"),
        ({"q": "\xe9\ud800"}, "q=%C3%A9%ED%A0%80"),
        ({"0": "name", "domain": "a"}, "0=name&domain=a"),
        ({"a": "x" * (MAX_ARGUMENTS - 2)}, "a=" + "x" * (MAX_ARGUMENTS - 2)),
    ],
)
def test_arguments_are_shown_as_in_a_url(arguments: dict[str, object], shown: str) -> None:
    """Without those that differ from run to run: those with an underscore, and objects."""
    assert shown_arguments(arguments) == shown


@pytest.mark.parametrize(
    "name",
    ["password", "PWD", "client_secret", "token", "api_key", "Authorization", "cookies", "session"],
)
def test_arguments_with_a_secret_are_hashed(name: str) -> None:
    found = {shown_arguments({"domain": "a", name: value}) for value in ("S3CRET", "other")}
    assert len(found) == 2
    assert all(re.fullmatch("~[0-9a-f]{16}", one) for one in found)


def test_an_address_with_a_password_is_hashed() -> None:
    assert shown_arguments({"url": "https://me:S3CRET@a.example"}).startswith("~")


texts = st.text(st.characters(codec=None), max_size=20)


@given(*[st.dictionaries(texts, texts, max_size=3)] * 2)
def test_any_arguments_are_one_word_and_others_have_another(
    first: dict[str, str], second: dict[str, str]
) -> None:
    """A claim's owner ends with them."""
    shown, other = shown_arguments(first), shown_arguments(second)
    assert re.fullmatch("[!-~]*", shown)
    assert len(shown) <= MAX_ARGUMENTS
    worker = Worker.own("", arguments=shown)
    assert (Worker.parse(worker.member), worker.arguments) == (worker, shown)
    alike = [
        {name: value for name, value in one.items() if name[:1] != "_"} for one in (first, second)
    ]
    assert (shown == other) is (alike[0] == alike[1])


# -- the folder of JOBDIR --


def test_folders_under_one_path_are_different_queues(tmp_path: Path) -> None:
    """Containers have each their own ``/job``; one of them may be moved."""
    found = []
    for place in ("a", "b"):
        (folder := tmp_path / "job").mkdir()
        found.append(queue_in(folder))
        assert queue_in(folder) == found[-1]
        assert [one.name for one in folder.iterdir()] == [ID_FILE]
        folder.rename(tmp_path / place)
    assert found[0] != found[1]
    assert [queue_in(tmp_path / place) for place in ("a", "b")] == found


def test_processes_that_start_together_on_one_folder_have_one_queue(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            (folder := tmp_path / f"{number}").mkdir()
            assert len(set(pool.map(queue_in, [folder] * 8))) == 1
            assert [one.name for one in folder.iterdir()] == [ID_FILE]


@pytest.mark.parametrize("method", ["write_text", "hardlink_to"])
def test_a_folder_that_cannot_have_the_file_goes_by_its_path(tmp_path: Path, method: str) -> None:
    with patch.object(Path, method, side_effect=PermissionError):
        assert queue_in(tmp_path) == queue_in(tmp_path / ".." / tmp_path.name)
        assert queue_in(tmp_path) != queue_in(tmp_path.parent)
    assert not list(tmp_path.iterdir())
    (tmp_path / ID_FILE).touch()  # somebody's, or one that a crash of the machine has emptied
    assert queue_in(tmp_path) == queue_in(tmp_path / ".." / tmp_path.name)


def queue_in(folder: Path) -> str:
    return queue_of(Settings({"JOBDIR": f"{folder}"}))
