"""The checks by their names. Each is a function of a question; its module says what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tunefarm.tuner.doctor.files import check_cache, check_database, check_temporary
from tunefarm.tuner.doctor.findings import Finding, Question
from tunefarm.tuner.doctor.machine import (
    check_cores,
    check_cpu,
    check_governor,
    check_memory,
    check_target,
)
from tunefarm.tuner.doctor.measuring import check_noise, check_ray
from tunefarm.tuner.doctor.program import (
    check_compiler,
    check_libraries,
    check_program,
    check_settings,
)

CheckFunction = Callable[[Question], list[Finding]]

CHECK_FUNCTIONS: Mapping[str, CheckFunction] = {
    "settings": check_settings,
    "program": check_program,
    "libraries": check_libraries,
    "cpu": check_cpu,
    "target": check_target,
    "cores": check_cores,
    "governor": check_governor,
    "memory": check_memory,
    "temporary files": check_temporary,
    "database": check_database,
    "compile cache": check_cache,
    "C compiler": check_compiler,
    "Ray": check_ray,
    "noise": check_noise,
}
