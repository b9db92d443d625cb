"""The example of work of the host prints what it claims, on both replicas."""

from __future__ import annotations

import os
import re


def test_host_work_prints_looks_up_calls_cpp_and_ends_where_a_check_does_not_hold(run_example, tmp_path):
    stderr = os.dup(2)  # TensorFlow prints past Python.
    with (tmp_path / "printed").open("w+") as file:
        os.dup2(file.fileno(), 2)
        try:
            total, ended = run_example("host_work")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        file.seek(0)
        printed = file.read()
    assert total == "the first replica's total: 12.0"
    assert re.fullmatch(r"the run ended: \[the total is too high\] .* \[1[24]\] .* \[10\]", ended)
    for replica, (totals, words) in enumerate((([4, 8, 12], '"one" "three"'), ([7, 14, 21], '"three" "seventeen"'))):
        assert list(map(int, re.findall(rf"replica {replica}: total: (\d+)", printed)))[:3] == totals
        assert printed.count(f"replica {replica}: step 2 has [{words}]\n") >= 1
