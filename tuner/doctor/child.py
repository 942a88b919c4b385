"""The process of one check: `python -m tunefarm.tuner.doctor.child NAME [QUESTION]`, findings on
stdout.

What a check imports, it imports when it runs: nothing above it does.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from tunefarm.tuner.doctor.checkup import CHECKS, Finding, Question


def main(arguments: list[str]) -> int:
    """Answer with the findings as a JSON list; what a check raises is a finding as well."""
    name = arguments[0] if arguments else ""
    check = next((check for check in CHECKS if check.name == name), None)
    if check is None:
        print(f"checks: {', '.join(check.name for check in CHECKS)}", file=sys.stderr)
        return 2
    question = Question(**json.loads(arguments[1])) if len(arguments) > 1 else Question()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # whatever libraries print is no answer
        try:
            from tunefarm.tuner.doctor.checks import CHECK_FUNCTIONS

            findings = CHECK_FUNCTIONS[name](question)
        except Exception as error:  # noqa: BLE001 - whatever is broken is what was asked for
            traceback.print_exc()
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            findings = [Finding(name, check.broken, f"cannot be checked: {reason}", check.advice)]
        json.dump([finding.to_json() for finding in findings], answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
