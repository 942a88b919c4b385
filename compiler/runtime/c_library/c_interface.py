"""A built model as C sees it: its name, and a struct member for each input and output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from tunefarm.compiler.errors import ExportError
from tunefarm.compiler.runtime.machine.thread_pool import is_supported_on
from tunefarm.compiler.runtime.sizes.model_ports import ModelPorts
from tunefarm.compiler.runtime.spec.executable_spec import ExecutableSpec
from tunefarm.compiler.types.dtypes import INTEGERS, WIDE_FLOATS, DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.signature import Signature, SizedPort
from tunefarm.compiler.types.tensor_type import TensorType

C_TYPES = {
    dtype: f"{dtype.onnx_name}_t" if dtype in INTEGERS else f"uint{8 * dtype.bytes}_t"
    for dtype in DType
    if dtype is not DType.STRING
} | {dtype: dtype.onnx_name for dtype in (*WIDE_FLOATS, DType.BOOL)}
"""Types that C has not are the bits of their elements."""

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


@frozen
class CPort:
    """An input or output: the struct member that points to it, and what it is to the model."""

    member: str
    declared: SizedPort

    @property
    def name(self) -> str:
        """Its name in the model."""
        return self.declared.name

    @property
    def type(self) -> TensorType:
        """The type that it is padded to."""
        return self.declared.type

    @property
    def c_type(self) -> str:
        """The C type of an element."""
        return C_TYPES[self.type.dtype]

    @property
    def elements(self) -> int:
        """How many elements a caller passes at most."""
        return self.type.bytes // self.type.dtype.bytes


@frozen
class CInterface:
    """What the generated C files are made from; `name` is a C identifier.

    `ports` are those of all programs together. `threads` is 1 where no kernel has a parallel loop
    or there is no pool for it, `title` is the model's name as it was given. `called` are symbols of
    functions that are not in the library. What is text in the model holds numbers of `words`.
    """

    name: str
    title: str
    ports: ModelPorts
    inputs: tuple[CPort, ...]
    outputs: tuple[CPort, ...]
    threads: int
    called: tuple[str, ...]
    texts: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def macro(self) -> str:
        """What the names of macros and error codes start with."""
        return self.name.upper()

    @property
    def signature(self) -> Signature:
        """How the model is called."""
        return self.ports.signature

    @property
    def is_dynamic(self) -> bool:
        """Whether a run depends on sizes: they, and conditions on them, have codes of errors."""
        programs = self.ports.programs
        return not (self.signature.is_fixed and all(p.signature.is_fixed for p in programs))

    @property
    def functions(self) -> tuple[str, ...]:
        """The symbols of the library."""
        names = ("error", "run", *(("sizes",) if self.is_dynamic else ()), "workspace_bytes")
        return tuple(f"{self.name}_{what}" for what in names)

    def size_macro(self, port: CPort, what: str) -> str:
        """The macro with a port's size; `what` is BYTES or COUNT."""
        return f"{self.macro}_{port.member.upper()}_{what}"


def c_interface(programs: Sequence[ExecutableSpec], name: str | None = None) -> CInterface:
    """How programs of a model look from C together; `name` is the model's name, by default the
    first one's.

    Raises `ExportError` for a model that begins with operators of strings.
    """
    spec = programs[0]
    prefix = spec.structure.prefix
    if prefix.steps:
        raise ExportError(
            f"{spec.name} begins with operators of strings ({prefix.operators}), which run in "
            "Python before the compiled code: a C library cannot have them",
            hint="export the part of the model behind them, and compute "
            f"{', '.join(prefix.results)} yourself; or load the artifact with tunefarm.load",
        )
    title = spec.name if name is None else name
    identified, ports = model_title(title), ModelPorts.of(programs)
    taken: set[str] = set()
    return CInterface(
        identified,
        title,
        ports,
        _ports(ports.signature.inputs, "input", taken),
        _ports(ports.signature.outputs, "output", taken),
        max(map(_threads, programs)),
        tuple(dict.fromkeys(link.symbol for link in spec.functions)),
        spec.structure.texts,
        spec.structure.words,
    )


def _threads(spec: ExecutableSpec) -> int:
    parallel = any(kernel.parallel for kernel in spec.kernels)
    return spec.threads if parallel and is_supported_on(spec.target.triple) else 1


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


def _ports(declared: Iterable[SizedPort], kind: str, taken: set[str]) -> tuple[CPort, ...]:
    """Members that differ from each other, and from those in `taken`, by more than case.

    Macros are made of them in upper case.
    """
    ports = []
    for port in declared:
        wanted = identifier(port.name, kind)
        member, number = wanted, 1
        while member.upper() in taken:
            number += 1
            member = f"{wanted.rstrip('_')}_{number}"
        taken.add(member.upper())
        ports.append(CPort(member, port))
    return tuple(ports)


def in_comment(text: str) -> str:
    """A name from a model, quoted so that it can neither end nor upset a comment."""
    safe = re.compile(r"[A-Za-z0-9 .,:;_/+()\[\]<>=@#$%&!~^|{}'-]")
    quoted = "".join(c if safe.fullmatch(c) else f"<{ord(c):#x}>" for c in text)
    return f'"{quoted}"'


def c_string(text: str) -> str:
    """Text as a C string, without what no C compiler reads as it stands."""
    plain = "".join(char if char.isascii() and char.isprintable() else "?" for char in text)
    return json.dumps(plain).replace("??", "?\\?")
