"""A worker's thread runs what it is given in order, tells what became of it, and ends when nobody needs it."""

from __future__ import annotations

import gc
import threading

import pytest

from atom_core.executor.worker_thread import WorkerThread


def find_thread(name: str) -> threading.Thread | None:
    return next((thread for thread in threading.enumerate() if thread.name == name), None)


def fail() -> None:
    raise KeyError("here")


def test_calls_run_in_the_order_in_which_they_were_submitted():
    thread, ran = WorkerThread("in order"), []
    for place in range(20):
        last = thread.submit(ran.append, place)
    last.wait()
    assert ran == list(range(20))
    thread.close()


def test_a_call_gives_what_the_function_returned_as_often_as_it_is_asked():
    thread = WorkerThread("asked")
    call = thread.submit(max, 3, 8)
    assert [call.result(), call.result()] == [8, 8]
    thread.close()


def test_what_a_function_raised_is_raised_by_its_result_and_the_thread_goes_on():
    thread = WorkerThread("raises")
    call = thread.submit(fail)
    call.wait()
    with pytest.raises(KeyError, match="here"):
        call.result()
    assert thread.submit(int).result() == 0
    thread.close()


def test_a_thread_that_is_closed_has_done_all_and_takes_no_more():
    thread = WorkerThread("closed")
    call = thread.submit(int)
    thread.close()
    thread.close()
    assert call.result() == 0
    assert find_thread("closed") is None
    with pytest.raises(RuntimeError, match="nothing runs after shutdown"):
        thread.submit(int)


def test_a_thread_ends_with_its_last_reference():
    thread = WorkerThread("forgotten")
    thread.submit(int).result()
    assert find_thread("forgotten") is not None
    del thread
    gc.collect()
    assert find_thread("forgotten") is None
