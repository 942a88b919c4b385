"""`python -m tunefarm.compiler.llvm.probe_target TARGET`: makes a little code for a target, as
JSON.

LLVM ends the process for some targets that it cannot do, so this is a process of its own, see
`tunefarm.tuner.from_settings`.
"""

from __future__ import annotations

import json
import sys

from tunefarm.compiler.llvm.machine import object_code
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

_CODE = """
define void @probe(ptr %from, ptr %to, i64 %count) {{
  %position = getelementptr float, ptr %from, i64 %count
  %vector = load <{lanes} x float>, ptr %position, align 4
  %double = fadd <{lanes} x float> %vector, %vector
  store <{lanes} x float> %double, ptr %to, align 4
  ret void
}}
"""


def main(text: str) -> int:
    """Exit code 0 if there is code for the target that `text` describes."""
    target = Target.from_json(json.loads(text))
    try:
        object_code(_CODE.format(lanes=target.lanes(DType.F32)), target)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is about the target
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
