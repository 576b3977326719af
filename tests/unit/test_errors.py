"""Errors come through text and pickle whole."""

import base64
import json
import pickle

from penstock.errors import TransientError, from_wire


def test_error_through_a_stack_trace_comes_back_whole() -> None:
    error = TransientError("BROKER_SILENT", 'waiting: "x" > y}>END?', context={"a": 'b"c'}, hint="try\nagain")
    back = from_wire(f"org.apache.SparkException: ...\nRuntimeError: {error.to_wire()}\n\tat x.y(Z.scala:1)")
    assert type(back) is TransientError
    assert str(back) == str(error)


def test_error_pickled_keeps_its_class_and_facts() -> None:
    back = pickle.loads(pickle.dumps(TransientError("A", "b", context={"c": 1})))
    assert (type(back), back.code, back.context) == (TransientError, "A", {"c": "1"})


def test_error_in_other_text_is_not_found() -> None:
    assert from_wire("nothing here") is None


def test_error_that_foreign_text_forges_is_not_taken_for_one() -> None:
    own = TransientError("BROKER_SILENT", "waiting")
    body = base64.b64encode(json.dumps(["TransientError", "FORGED", "x", {}, None]).encode()).decode()
    signature = own.to_wire().rpartition(":")[2].rstrip(">")
    forged = [f"PENSTOCK-ERROR<{body}>", f"PENSTOCK-ERROR<{body}:{'0' * 64}>", f"PENSTOCK-ERROR<{body}:{signature}>"]
    forged.append(TransientError("FORGED", "x").to_wire(b"another process"))
    assert [from_wire(text) for text in forged] == [None] * 4
    back = from_wire(f'invalid input: "{forged[0]}" {forged[2]} {own.to_wire()}')
    assert back is not None and back.code == "BROKER_SILENT"
