"""How a C program finds out whether its CPU has the instructions that code was made for.

CPUID is asked directly: compilers differ in the names that `__builtin_cpu_supports` knows, and on a
CPU without LZCNT, for one, code that uses it does not stop but computes something else. On 64-bit
Arm it is the kernel that tells, in the words of getauxval(3). Matrix tiles have to be asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tunefarm.compiler.machine.amx_state import TILE_FEATURES
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen

_EAX, _EBX, _ECX, _EDX = range(4)
_AVX = 0x6  # bits of XCR0: the operating system keeps these registers
_AVX512 = 0xE6
_TILES = 0x60000


@frozen
class CpuidBit:
    """Where CPUID tells of a feature, and the bits of XCR0 that its registers need."""

    leaf: int
    subleaf: int
    register: int
    bit: int
    xcr0: int = 0


# By LLVM's names: what the code generator may use by itself.
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
    "amx-bf16": CpuidBit(7, 0, _EDX, 22, _TILES),
    "avx512fp16": CpuidBit(7, 0, _EDX, 23, _AVX512),
    "amx-tile": CpuidBit(7, 0, _EDX, 24, _TILES),
    "amx-int8": CpuidBit(7, 0, _EDX, 25, _TILES),
    "avxvnni": CpuidBit(7, 1, _EAX, 4, _AVX),
    "avx512bf16": CpuidBit(7, 1, _EAX, 5, _AVX512),
    "amx-fp16": CpuidBit(7, 1, _EAX, 21, _TILES),
    "avxifma": CpuidBit(7, 1, _EAX, 23, _AVX),
    "avxvnniint8": CpuidBit(7, 1, _EDX, 4, _AVX),
    "avxneconvert": CpuidBit(7, 1, _EDX, 5, _AVX),
    "avxvnniint16": CpuidBit(7, 1, _EDX, 10, _AVX),
    "lzcnt": CpuidBit(0x80000001, 0, _ECX, 5),
    "sse4a": CpuidBit(0x80000001, 0, _ECX, 6),
    "xop": CpuidBit(0x80000001, 0, _ECX, 11, _AVX),
    "fma4": CpuidBit(0x80000001, 0, _ECX, 16, _AVX),
    "tbm": CpuidBit(0x80000001, 0, _ECX, 21),
}

# By LLVM's names: instructions for systems, threads and cryptography, and what x86-64 always has.
# No code of ours has use for them: Linux, a hypervisor or the CPU itself may hide them.
_X86_SYSTEM_FEATURES = frozenset(
    """64bit adx aes clflushopt clwb clzero cldemote cmov crc32 cx16 cx8 enqcmd fsgsbase fxsr hreset
    invpcid kl lwp mmx movdir64b movdiri mwaitx pclmul pconfig pku prefetchi prfchw ptwrite raoint
    rdpid rdpru rdrnd rdseed rtm sahf serialize sgx sha sha512 shstk sm3 sm4 sse sse2 tsxldtrk uintr
    usermsr vaes vpclmulqdq waitpkg wbnoinvd widekl xsave xsavec xsaveopt xsaves""".split()
)

# The entry of the auxiliary vector (AT_HWCAP, AT_HWCAP2) and the bit in it, from the kernel's
# Documentation/arch/arm64/elf_hwcaps.rst.
ARM_FEATURES = {
    "lse": (16, 8),
    "fullfp16": (16, 10),
    "rdm": (16, 12),
    "jsconv": (16, 13),
    "complxnum": (16, 14),
    "rcpc": (16, 15),
    "dotprod": (16, 20),
    "sve": (16, 22),
    "fp16fml": (16, 23),
    "sve2": (26, 1),
    "i8mm": (26, 13),
    "bf16": (26, 14),
}

_ARM_CODE = """\
#include <sys/auxv.h>

struct feature {
    unsigned long entry;
    unsigned bit;
};

static int cpu_has(const struct feature *feature)
{
    return getauxval(feature->entry) >> feature->bit & 1;
}
"""

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

_TILE_CODE = """\
#include <sys/syscall.h>
#include <unistd.h>

/* Linux hands tile state out on demand; some virtual machines tell of tiles and have no palette. */
static int tiles_are_permitted(void)
{
    unsigned values[4];

    if (!__get_cpuid_count(0x1d, 0, &values[0], &values[1], &values[2], &values[3]))
        return 0;
    return values[0] >= 1 && syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}
"""
_NO_TILES = "#define tiles_are_permitted() 1\n"


def needed_features(target: Target) -> frozenset[str]:
    """The features of `target` that its code may use; one that is not known here is needed."""
    return frozenset(target.features) - _X86_SYSTEM_FEATURES


def checked_features(target: Target) -> tuple[str, ...]:
    """The features of `target` that generated C code checks for before it runs a kernel."""
    return tuple(name for name in target.features if name in _features_of(target))


def _features_of(target: Target) -> Collection[str]:
    """What can be checked on CPUs of the target's family."""
    if target.triple.startswith("x86_64"):
        return X86_FEATURES
    return ARM_FEATURES if target.triple.startswith("aarch64") else ()


def cpu_choice_code(programs: Sequence[Sequence[str]]) -> str:
    """C code of `static int program_number(void)`: the first program whose features the CPU has.

    `programs` are those that each needs; the number is -1 if there is none. The answer is kept.
    """
    every = [name for features in programs for name in features]
    if not programs[0]:
        return "static int program_number(void)\n{\n    return 0;\n}\n"
    ends = [sum(map(len, programs[: n + 1])) for n in range(len(programs))]
    starts = [0, *ends[:-1]]
    ranges = "\n".join(
        f"    {{{start}, {end}, {int(any(name.startswith(TILE_FEATURES) for name in features))}}},"
        for start, end, features in zip(starts, ends, programs, strict=True)
    )
    return f"""{_asking_code(every)}
static const struct feature needed[] = {{
{_rows(every)}
}};

/* The features of each program, from the first to the one behind the last. */
static const struct {{
    size_t first, end;
    int tiles;
}} needs[] = {{
{ranges}
}};

static int program_number(void)
{{
    static int known; /* 0: not asked yet, else 2 more than the number */
    int number = __atomic_load_n(&known, __ATOMIC_RELAXED) - 2;

    if (number == -2) {{
        number = -1;
        for (int i = 0; number < 0 && i < (int)(sizeof needs / sizeof *needs); i++) {{
            size_t next = needs[i].first;

            while (next < needs[i].end && cpu_has(&needed[next]))
                next++;
            if (next == needs[i].end && (!needs[i].tiles || tiles_are_permitted()))
                number = i;
        }}
        __atomic_store_n(&known, number + 2, __ATOMIC_RELAXED);
    }}
    return number;
}}
"""


def _asking_code(features: Sequence[str]) -> str:
    """C code of `cpu_has`, and `tiles_are_permitted`."""
    of_arm = all(name in ARM_FEATURES for name in features)
    has_tiles = any(name.startswith(TILE_FEATURES) for name in features)
    return f"{_ARM_CODE if of_arm else _X86_CODE}\n{_TILE_CODE if has_tiles else _NO_TILES}"


def _rows(features: Sequence[str]) -> str:
    return "\n".join(f"    {feature_row(name)}, /* {name} */" for name in features)


def feature_row(name: str) -> str:
    """The initialiser of a feature's `struct feature`."""
    if name in ARM_FEATURES:
        entry, bit = ARM_FEATURES[name]
        return f"{{{entry}, {bit}}}"
    item = X86_FEATURES[name]
    return f"{{{item.leaf:#x}, {item.subleaf}, {item.register}, {item.bit}, {item.xcr0:#x}}}"
