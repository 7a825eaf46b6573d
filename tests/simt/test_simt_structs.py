"""The structures that Python fills have the layout of the structs that kernels read."""

from __future__ import annotations

import ctypes

import pytest

from .emulator import build, structs

ARGS, CONFIG = structs.HEADER.read_text(), structs.CONFIG_HEADER.read_text()


def differences(header: str, mirror: str, namespace: str, wanted: str = r"\w+") -> str:
    """The compiler's messages on fields that lie elsewhere in the structs of ``header`` than in the
    structures of ``mirror``. Both are texts of headers."""
    claims = []
    for name, structure in structs.structures(mirror, wanted).items():
        size = ctypes.sizeof(structure)
        claims.append(f'static_assert(sizeof({namespace}::{name}) == {size}, "{name}");')
        for field, _ in structure._fields_:
            offset = f"offsetof({namespace}::{name}, {field})"
            claims.append(
                f'static_assert({offset} == {getattr(structure, field).offset}, "{field}");'
            )
    assert len(claims) > 10
    return build.compile_errors(
        "\n".join(["#include <cstddef>", header.replace("#pragma once", ""), *claims])
    )


def test_every_field_lies_where_the_compiler_puts_it():
    assert differences(ARGS, ARGS, "fusedops") == ""
    assert differences(CONFIG, CONFIG, "simt", "Config") == ""


@pytest.mark.parametrize(
    "first, second", [("output", "sum"), ("*mean", "*rstd"), ("scale", "mask_value")]
)
def test_two_fields_of_one_size_that_change_places_are_noticed_and_followed(first, second):
    changed = ARGS.replace(f"{first}, {second};", f"{second}, {first};", 1)
    assert "static assertion failed" in differences(changed, ARGS, "fusedops")
    assert differences(changed, changed, "fusedops") == ""
