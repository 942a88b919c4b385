"""How a C program finds out whether its CPU has the instructions that code was made for.

CPUID is asked directly: compilers differ in the names that `__builtin_cpu_supports` knows, and on a
CPU without LZCNT, for one, code that uses it does not stop but computes something else.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.target import Target

_EAX, _EBX, _ECX, _EDX = range(4)
_AVX = 0x6  # bits of XCR0: the operating system keeps these registers
_AVX512 = 0xE6


@dataclass(frozen=True, slots=True)
class CpuidBit:
    """Where CPUID tells of a feature, and the bits of XCR0 that its registers need."""

    leaf: int
    subleaf: int
    register: int
    bit: int
    xcr0: int = 0


# By LLVM's names: what the code generator may use by itself. Instructions for systems, threads and
# cryptography, which it never chooses, are left out.
X86_FEATURES = {
    "sse3": CpuidBit(1, 0, _ECX, 0),
    "ssse3": CpuidBit(1, 0, _ECX, 9),
    "sse4.1": CpuidBit(1, 0, _ECX, 19),
    "sse4.2": CpuidBit(1, 0, _ECX, 20),
    "movbe": CpuidBit(1, 0, _ECX, 22),
    "popcnt": CpuidBit(1, 0, _ECX, 23),
    "avx": CpuidBit(1, 0, _ECX, 28, _AVX),
    "f16c": CpuidBit(1, 0, _ECX, 29, _AVX),
    "fma": CpuidBit(1, 0, _ECX, 12, _AVX),
    "bmi": CpuidBit(7, 0, _EBX, 3),
    "avx2": CpuidBit(7, 0, _EBX, 5, _AVX),
    "bmi2": CpuidBit(7, 0, _EBX, 8),
    "avx512f": CpuidBit(7, 0, _EBX, 16, _AVX512),
    "avx512dq": CpuidBit(7, 0, _EBX, 17, _AVX512),
    "avx512ifma": CpuidBit(7, 0, _EBX, 21, _AVX512),
    "avx512cd": CpuidBit(7, 0, _EBX, 28, _AVX512),
    "avx512bw": CpuidBit(7, 0, _EBX, 30, _AVX512),
    "avx512vl": CpuidBit(7, 0, _EBX, 31, _AVX512),
    "avx512vbmi": CpuidBit(7, 0, _ECX, 1, _AVX512),
    "avx512vbmi2": CpuidBit(7, 0, _ECX, 6, _AVX512),
    "gfni": CpuidBit(7, 0, _ECX, 8),
    "avx512vnni": CpuidBit(7, 0, _ECX, 11, _AVX512),
    "avx512bitalg": CpuidBit(7, 0, _ECX, 12, _AVX512),
    "avx512vpopcntdq": CpuidBit(7, 0, _ECX, 14, _AVX512),
    "avx512vp2intersect": CpuidBit(7, 0, _EDX, 8, _AVX512),
    "avx512fp16": CpuidBit(7, 0, _EDX, 23, _AVX512),
    "avxvnni": CpuidBit(7, 1, _EAX, 4, _AVX),
    "avx512bf16": CpuidBit(7, 1, _EAX, 5, _AVX512),
    "avxifma": CpuidBit(7, 1, _EAX, 23, _AVX),
    "lzcnt": CpuidBit(0x80000001, 0, _ECX, 5),
    "sse4a": CpuidBit(0x80000001, 0, _ECX, 6),
    "xop": CpuidBit(0x80000001, 0, _ECX, 11, _AVX),
    "fma4": CpuidBit(0x80000001, 0, _ECX, 16, _AVX),
    "tbm": CpuidBit(0x80000001, 0, _ECX, 21),
}

_X86_CODE = """\
#include <cpuid.h>

struct feature {
    unsigned leaf, subleaf, reg, bit, xcr0;
};

static int cpu_has(const struct feature *feature)
{
    unsigned values[4];
    unsigned low = 0, high;

    if (!__get_cpuid(1, &values[0], &values[1], &values[2], &values[3]))
        return 0;
    if (values[2] >> 27 & 1) /* the system has switched XGETBV on */
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(feature->leaf, feature->subleaf, &values[0], &values[1], &values[2],
                           &values[3]))
        return 0;
    return (values[feature->reg] >> feature->bit & 1) && (low & feature->xcr0) == feature->xcr0;
}
"""


def checked_features(target: Target) -> tuple[str, ...]:
    """The features of `target` that generated C code checks for before it runs a kernel."""
    if not target.triple.startswith("x86_64"):
        return ()
    return tuple(name for name in target.features if name in X86_FEATURES)


def cpu_check_code(features: tuple[str, ...]) -> str:
    """C code of `static int cpu_is_able(void)`: 1 if the CPU has all of `features`.

    The answer is kept: CPUID takes long in a virtual machine.
    """
    if not features:
        return "static int cpu_is_able(void)\n{\n    return 1;\n}\n"
    rows = "\n".join(f"    {feature_row(name)}, /* {name} */" for name in features)
    return f"""{_X86_CODE}
static const struct feature needed[] = {{
{rows}
}};

static int cpu_is_able(void)
{{
    static int known; /* 0: not asked yet, 1: able, 2: not able */
    int able = __atomic_load_n(&known, __ATOMIC_RELAXED);

    if (able == 0) {{
        able = 1;
        for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
            if (!cpu_has(&needed[i]))
                able = 2;
        __atomic_store_n(&known, able, __ATOMIC_RELAXED);
    }}
    return able == 1;
}}
"""


def feature_row(name: str) -> str:
    """The initialiser of a feature's `struct feature`."""
    item = X86_FEATURES[name]
    return f"{{{item.leaf:#x}, {item.subleaf}, {item.register}, {item.bit}, {item.xcr0:#x}}}"
