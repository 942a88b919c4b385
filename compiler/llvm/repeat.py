"""A loop that calls a kernel n times: what the timer runs, so that no Python is in a sample.

The calls alternate with several tables of buffers, `stride` bytes apart, starting with table
`first`: a kernel timed over copies of its weights finds them as cold as a whole model does.
Denormal numbers are flushed meanwhile, as they are in a model.
"""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

from tunefarm.compiler.machine.amx_set_up import set_up_ir
from tunefarm.compiler.machine.float_state import float_state_ir
from tunefarm.compiler.target import Target

REPEAT_SYMBOL = "tunefarm_repeat"

_IR = f"""
define void @{REPEAT_SYMBOL}(ptr %kernel, ptr %tables, ptr %workspace, ptr %runtime, i64 %n,
                             i64 %first, i64 %count, i64 %stride) {{
entry:
  %floats = call i64 @repeat_floats.flush()
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %turn = add nuw nsw i64 %first, %i
  %table = urem i64 %turn, %count
  %offset = mul nuw nsw i64 %table, %stride
  %buffers = getelementptr inbounds i8, ptr %tables, i64 %offset
  call void %kernel(ptr %buffers, ptr %workspace, ptr %runtime)
  %next = add nuw nsw i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  call void @repeat_floats.set(i64 %floats)
  ret void
}}
"""


def _repeat_ir(target: Target) -> str:
    """With matrix tiles set up round all calls, as they are in a model, if the target has them."""
    ir = float_state_ir(target.triple, "repeat_floats") + _IR
    if target.matrix_tiles is None:
        return ir
    begun = ir.replace("entry:\n", "entry:\n  call void @repeat_tiles.begin()\n")
    ended = begun.replace("done:\n", "done:\n  call void @repeat_tiles.end()\n")
    return set_up_ir(target.matrix_tiles, "repeat_tiles") + ended


@cache
def repeat_call_object(target: Target) -> bytes:
    """Object code of `void tunefarm_repeat(kernel, tables, workspace, runtime, n, first, count,
    stride)`, the last four int64."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(_repeat_ir(target))
    module.triple = target.triple
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        opt=1, reloc="pic", codemodel="default"
    )
    module.data_layout = str(machine.target_data)
    code: bytes = machine.emit_object(module)
    return code
