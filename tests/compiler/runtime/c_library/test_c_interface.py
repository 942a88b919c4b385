"""What the C files are made from: names that C takes, and the check of the CPU."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compiler.runtime.c_models import (
    Library,
    cc,
    compile_example,
    compiled,
    odd_mlp,
    renamed,
    run,
)
from tunefarm.compiler.runtime.c_library.c_implementation import implementation_text
from tunefarm.compiler.runtime.c_library.c_interface import c_interface, identifier
from tunefarm.compiler.runtime.c_library.export_c import export_library
from tunefarm.compiler.runtime.machine.cpu_features import (
    X86_FEATURES,
    cpu_choice_code,
    feature_row,
)
from tunefarm.compiler.runtime.spec.buffers import address_of
from tunefarm.compiler.target import host_target

ON_X86 = platform.machine() == "x86_64"


# Names.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resnet18", "resnet18"),
        ("resnet-18.v2", "resnet_18_v2"),
        ("input.1", "input_1"),
        ("1", "input_1"),
        ("__proto__", "proto"),
        ("a__b", "a_b"),
        ("class", "class_"),
        ("int", "int_"),
        ("linux", "linux_"),
        ("größe", "gr_e"),
        ("模型", "input"),
        ("", "input"),
    ],
)
def test_names_become_identifiers(text: str, expected: str) -> None:
    assert identifier(text, "input") == expected


def test_names_that_become_the_same_are_numbered(tmp_path: Path) -> None:
    interface = c_interface([compiled(odd_mlp(), tmp_path)], "odd mlp")
    assert [port.member for port in interface.inputs] == ["input_1", "input_1_2"]
    assert [port.member for port in interface.outputs] == ["class_", "out_a", "out_a_2"]
    assert interface.functions == ("odd_mlp_error", "odd_mlp_run", "odd_mlp_workspace_bytes")


def test_names_that_differ_by_case_alone_have_macros_of_their_own(tmp_path: Path) -> None:
    interface = c_interface([compiled(renamed("x", "X"), tmp_path)], "n")
    ports = (*interface.inputs, *interface.outputs)
    assert [interface.size_macro(port, "BYTES") for port in ports] == ["N_X_BYTES", "N_X_2_BYTES"]


@pytest.mark.parametrize(
    "name",
    ["*/ int broken; /*", "/*", "//", "a\nb", "\\", "??/", '"', "%s", "é*/", "NULL", "x" * 300],
)
def test_no_name_upsets_the_files(name: str, tmp_path: Path) -> None:
    spec = compiled(renamed(name, f"{name} "), tmp_path)
    header = export_library(spec, tmp_path, name)[0]
    compile_example(tmp_path, header.stem)
    assert "[3]: 0.5 0.4375 0.375" in run(tmp_path, f"./{header.stem}_example")


@pytest.mark.parametrize("name", ["m", "c", "pthread", "string"])
def test_no_model_is_in_the_way_of_a_system_library(name: str, tmp_path: Path) -> None:
    spec = compiled(renamed("x", "y"), tmp_path)
    _, library, _ = export_library(spec, tmp_path, name)
    assert library.name == f"lib{name}_model.so"
    compile_example(tmp_path, f"{name}_model", "-I.")


# The CPU.


@pytest.mark.skipif(not ON_X86, reason="CPUs of other architectures are not asked")
def test_a_cpu_without_a_feature_is_an_error_and_runs_nothing(tmp_path: Path) -> None:
    others = (name for name in X86_FEATURES if name not in host_target().features)
    missing = next(name for name in others if not name.startswith("amx"))  # needs others as well
    spec = compiled(renamed("x", "y"), tmp_path)
    features = tuple(sorted({*spec.target.features, missing}))
    spec = replace(spec, target=replace(spec.target, features=features))
    library = Library(export_library(spec, tmp_path, "foreign")[1], "foreign", spec)
    workspace = address_of(library.workspace)
    assert library.call([workspace, workspace], workspace) == 3
    assert missing in library.error(3)


@pytest.mark.skipif(not ON_X86, reason="CPUs of other architectures are not asked")
def test_c_code_knows_the_features_that_llvm_knows(tmp_path: Path) -> None:
    rows = "".join(f"{feature_row(name)}, " for name in X86_FEATURES)
    names = "".join(f'"{name}", ' for name in X86_FEATURES)
    (tmp_path / "features.c").write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        + cpu_choice_code([("sse3",)])
        + f"static const struct feature all[] = {{{rows}}};\n"
        f"static const char *const names[] = {{{names}}};\n"
        "int main(void)\n{\n    for (size_t i = 0; i < sizeof all / sizeof *all; i++)\n"
        "        if (cpu_has(&all[i]))\n            puts(names[i]);\n    "
        "return program_number() != 0;\n}\n"
    )
    cc(tmp_path, "-std=gnu11", "-Wall", "-Werror", "features.c")
    known = {name for name in host_target().features if name in X86_FEATURES}
    assert set(run(tmp_path, "./a.out").split()) == known


@pytest.mark.skipif(not ON_X86, reason="CPUs of other architectures have no such tiles")
def test_c_code_asks_for_tiles_and_does_without_where_they_are_denied(tmp_path: Path) -> None:
    """The check of each reason by itself: tiles are no feature of the CPU that compiles this."""
    (tmp_path / "tiles.c").write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        + cpu_choice_code([("sse3", "amx-tile")])
        + "int main(void)\n{\n"
        "    int is_able = program_number() == 0;\n"
        '    printf("%d %d\\n", is_able, cpu_has(&needed[1]) && tiles_are_permitted());\n'
        "    return 0;\n}\n"
    )
    cc(tmp_path, "-std=gnu11", "-Wall", "-Werror", "tiles.c")
    able = int(host_target().matrix_tiles is not None)
    assert run(tmp_path, "./a.out").split() == [str(able), str(able)]


_CPU_WITH_TILES = """\
#include <cpuid.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static int cpuid_of_tiles(unsigned leaf, unsigned subleaf, unsigned *a, unsigned *b, unsigned *c,
                          unsigned *d)
{
    *a = *b = *c = *d = ~0u;
    return leaf + subleaf + 1 != 0;
}
#define __get_cpuid(leaf, a, b, c, d) cpuid_of_tiles(leaf, 0, a, b, c, d)
#define __get_cpuid_count cpuid_of_tiles
#define __asm__
#define volatile(...) (void)high, low = 0x600e7 /* what XGETBV tells */
#define syscall(number, asked, state) \\
    ((number) == 158 && (asked) == 0x1023 && (state) == 18 ? ANSWER : -2)
"""
"""A CPU that has everything, and a kernel whose answer to who asks for tiles is `ANSWER`."""


@pytest.mark.skipif(not ON_X86, reason="CPUs of other architectures have no such tiles")
@pytest.mark.parametrize(("answer", "able"), [(0, 1), (-1, 0)])
def test_c_code_does_without_tiles_that_the_kernel_denies(
    answer: int, able: int, tmp_path: Path
) -> None:
    code = cpu_choice_code([("avx512f", "amx-tile")])
    main = 'int main(void)\n{\n    printf("%d", program_number() == 0);\n    return 0;\n}\n'
    (tmp_path / "denied.c").write_text(_CPU_WITH_TILES + code + main)
    cc(tmp_path, "-std=gnu11", "-Wall", "-Werror", f"-DANSWER={answer}", "denied.c")
    assert run(tmp_path, "./a.out") == str(able)


@pytest.mark.parametrize("numerics", ["u8 x i8", "direct"])
def test_c_library_asks_for_tiles_where_narrow_numbers_are_multiplied(
    numerics: str, tmp_path: Path
) -> None:
    spec = compiled(renamed("x", "y"), tmp_path)
    plain = replace(spec.target.without_matrix_tiles(), features=("sse3",))
    target = replace(plain, features=("sse3", "amx-tile", "amx-int8"))
    kernels = tuple(replace(kernel, numerics=numerics) for kernel in spec.kernels)
    tiled = replace(spec, target=target, kernels=kernels)
    text = implementation_text(c_interface([tiled], "tiled"), [tiled])
    asks = "or its kernel does not permit matrix tiles: sse3 amx-tile amx-int8" in text
    assert asks == ("amx-tile" in text) == (numerics == "u8 x i8")


def test_every_feature_that_vectors_need_is_checked() -> None:
    """Of the vector instructions that LLVM tells of only those of cryptography are left out."""
    left_out = {"aes", "sha", "vaes", "pclmul", "vpclmulqdq", "crc32"}
    vector = re.compile(r"(s?sse|avx|fma|f16c|xop|bmi|lzcnt|popcnt|movbe)")
    for name in set(host_target().features) - left_out - {"sse", "sse2"}:
        assert not vector.match(name) or name in X86_FEATURES or not ON_X86, name
