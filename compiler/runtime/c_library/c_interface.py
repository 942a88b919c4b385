"""A built model as C sees it: its name, and a struct member for each input and output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tunefarm.compiler.errors import ExportError
from tunefarm.compiler.runtime.machine.thread_pool import is_supported_on
from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT, ExecutableSpec
from tunefarm.compiler.runtime.spec.kernel_operands import KernelOperands
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import Signature, SizedPort
from tunefarm.compiler.types.tensor_type import TensorType

# Types that C has not are the bits of their elements.
C_TYPES = {
    DType.F32: "float",
    DType.F64: "double",
    DType.F16: "uint16_t",
    DType.BF16: "uint16_t",
    DType.F8E4M3FN: "uint8_t",
    DType.F8E4M3FNUZ: "uint8_t",
    DType.F8E5M2: "uint8_t",
    DType.F8E5M2FNUZ: "uint8_t",
    DType.F8E8M0: "uint8_t",
    DType.F4E2M1: "uint8_t",
    DType.I2: "uint8_t",
    DType.U2: "uint8_t",
    DType.I4: "uint8_t",
    DType.U4: "uint8_t",
    DType.I8: "int8_t",
    DType.I16: "int16_t",
    DType.I32: "int32_t",
    DType.I64: "int64_t",
    DType.U8: "uint8_t",
    DType.U16: "uint16_t",
    DType.U32: "uint32_t",
    DType.U64: "uint64_t",
    DType.BOOL: "bool",
}

# Keywords of C and C++, and macros that the standard headers or the compilers define.
_RESERVED = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class co_await co_return co_yield compl complex concept const const_cast consteval
    constexpr constinit continue decltype default delete do double dynamic_cast else enum explicit
    export extern false float for friend goto if imaginary inline int long mutable namespace new
    noexcept noreturn not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast
    struct switch template this thread_local throw true try typedef typeid typename typeof
    typeof_unqual union unsigned using virtual void volatile wchar_t while xor xor_eq
    assert errno i386 linux stderr stdin stdout unix
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t
    BUFSIZ EOF HUGE_VAL I INFINITY NAN NULL RAND_MAX SEEK_CUR SEEK_END SEEK_SET SIZE_MAX
    """.split()
)
# A model of such a name would have a library or a header in the way of the system's.
_SYSTEM = frozenset(
    """
    c dl gcc gcc_s gomp m omp pthread resolv rt util
    assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign
    stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar
    unistd wchar wctype
    """.split()
)
_LONGEST = 100  # characters of a model's name: it is part of file names


@dataclass(frozen=True, slots=True)
class CPort:
    """An input or output: its name in the model, and the struct member that points to it."""

    name: str
    member: str
    type: TensorType

    @property
    def c_type(self) -> str:
        """The C type of an element."""
        return C_TYPES[self.type.dtype]

    @property
    def elements(self) -> int:
        """How many elements a caller passes."""
        return self.type.bytes // self.type.dtype.bytes


@dataclass(frozen=True, slots=True)
class CInterface:
    """What the generated C files are made from; `name` is a C identifier.

    `threads` is 1 where no kernel has a parallel loop or there is no pool for it, `title` is the
    model's name as it was given. `called` are symbols of functions that are not in the library.
    With a `signature` ports are its ports, of the types that they are padded to, and `computed` are
    the types of the outputs that are no ports. `is_part` marks a program of a library of several
    for sizes, which starts no threads itself and checks no CPU. What is text in the model holds
    numbers of `words`. `kernels` are those that are exported as functions of their own, of a
    library of several programs those of its `parts`, each with the sizes that it is for; `unable`
    is what says of a part that the CPU cannot run its kernels.
    """

    name: str
    title: str
    inputs: tuple[CPort, ...]
    outputs: tuple[CPort, ...]
    threads: int
    called: tuple[str, ...] = ()
    signature: Signature | None = None
    computed: tuple[tuple[str, TensorType], ...] = ()
    is_part: bool = False
    texts: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    kernels: tuple[KernelOperands, ...] = ()
    parts: tuple[tuple[str, CInterface], ...] = ()
    unable: str = ""

    @property
    def macro(self) -> str:
        """What the names of macros and error codes start with."""
        return self.name.upper()

    @property
    def functions(self) -> tuple[str, ...]:
        """The symbols of the library."""
        sizes = () if self.signature is None else ("sizes",)
        names = ("error", "run", *sizes, "workspace_bytes")
        kernels = [name for _, part in self.parts for name in part.kernel_functions]
        own = (f"{self.name}_{what}" for what in names)
        return (*own, *self.kernel_functions, *kernels)

    @property
    def kernel_functions(self) -> tuple[str, ...]:
        """The symbols of the kernels that are exported from this program alone."""
        names = [f"{self.name}_kernel_at"] if self.kernels else []
        for kernel in self.kernels:
            symbol = self.kernel_symbol(kernel)
            names += [symbol, f"{symbol}_workspace_bytes"]
        return tuple(names)

    def kernel_symbol(self, kernel: KernelOperands) -> str:
        """The function of one of the kernels."""
        return f"{self.name}_kernel_{identifier(kernel.name, 'kernel')}"

    @property
    def starts_threads(self) -> bool:
        """Whether a run starts threads unless they are there."""
        return self.threads > 1 and not self.is_part

    def size_macro(self, port: CPort, what: str) -> str:
        """The macro with a port's size; `what` is BYTES or COUNT."""
        return f"{self.macro}_{port.member.upper()}_{what}"


def c_interface(spec: ExecutableSpec, name: str | None = None) -> CInterface:
    """How `spec` looks from C; `name` is the model's name, by default the spec's.

    Raises `ExportError` for a model that begins with operators of strings.
    """
    prefix = spec.structure.prefix
    if prefix.steps:
        raise ExportError(
            f"{spec.name} begins with operators of strings ({prefix.operators}), which run in "
            "Python before the compiled code: a C library cannot have them",
            hint="export the part of the model behind them, and compute "
            f"{', '.join(prefix.results)} yourself; or load the artifact with tunefarm.load",
        )
    title = spec.name if name is None else name
    taken: set[str] = set()
    sized = None if spec.signature.is_fixed else spec.signature
    inputs = _ports(_seen(spec.inputs, sized.inputs if sized else None), "input", taken)
    outputs = _ports(_seen(spec.outputs, sized.outputs if sized else None), "output", taken)
    seen = {port.name for port in outputs}
    parallel = any(kernel.parallel for kernel in spec.kernels)
    has_pool = parallel and is_supported_on(spec.target.triple)
    return CInterface(
        model_title(title),
        title,
        inputs,
        outputs,
        spec.threads if has_pool else 1,
        tuple(dict.fromkeys(link.symbol for link in spec.functions)),
        sized,
        tuple((name, type) for name, type in spec.outputs if name not in seen),
        texts=spec.structure.texts,
        words=spec.structure.words,
    )


def _seen(
    values: Iterable[tuple[str, TensorType]], ports: Sequence[SizedPort] | None
) -> Iterable[tuple[str, TensorType]]:
    """The values that are ports."""
    if ports is None:
        return values
    names = {port.name for port in ports}
    return [value for value in values if value[0] in names]


def model_title(name: str) -> str:
    """What the names of a model's C functions and files start with; of itself, itself."""
    identified = identifier(name, "model")[:_LONGEST]
    return f"{identified}_model" if identified in _SYSTEM else identified


def identifier(text: str, kind: str) -> str:
    """`text` as an identifier of C and C++ that neither language reserves.

    What is no ASCII letter or digit becomes an underscore, never two in a row; `kind` goes before a
    digit, and stands for a text of which nothing is left.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or kind
    if name[0].isdigit():
        name = f"{kind}_{name}"
    return f"{name}_" if name in _RESERVED else name


def _ports(
    values: Iterable[tuple[str, TensorType]], kind: str, taken: set[str]
) -> tuple[CPort, ...]:
    """Members that differ from each other, and from those in `taken`, by more than case.

    Macros are made of them in upper case.
    """
    ports = []
    for name, type in values:
        wanted = identifier(name, kind)
        member, number = wanted, 1
        while member.upper() in taken:
            number += 1
            member = f"{wanted.rstrip('_')}_{number}"
        taken.add(member.upper())
        ports.append(CPort(name, member, type))
    return tuple(ports)


def in_comment(text: str) -> str:
    """A name from a model, quoted so that it can neither end nor upset a comment."""
    safe = re.compile(r"[A-Za-z0-9 .,:;_/+()\[\]<>=@#$%&!~^|{}'-]")
    quoted = "".join(c if safe.fullmatch(c) else f"<{ord(c):#x}>" for c in text)
    return f'"{quoted}"'


def error_function(interface: CInterface, lacking: str, cases: str) -> str:
    """The function that says what an error code means; `cases` are those of the model."""
    macro = interface.macro
    return f"""\
const char *{interface.name}_error(int code)
{{
    switch (code) {{
    case {macro}_OK:
        return "no error";
    case {macro}_ERROR_NULL:
        return "io, a pointer in it, or the workspace is null";
    case {macro}_ERROR_WORKSPACE:
        return "the workspace is not aligned to {ALIGNMENT} bytes";
    case {macro}_ERROR_CPU:
        return "{lacking}";
{cases}    default:
        return "unknown error code";
    }}
}}
"""
