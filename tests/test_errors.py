"""Each error of the system is of one of three kinds."""

from __future__ import annotations

from tensorflow_ipu import errors


def test_every_error_is_of_one_kind_and_an_ipu_error():
    kinds = (errors.ApplicationError, errors.RecoverableError, errors.UnrecoverableError)
    named = [getattr(errors, name) for name in errors.__all__]
    for error in named:
        if issubclass(error, Exception) and error not in (errors.IpuError, errors.RecompilationWarning):
            assert issubclass(error, errors.IpuError)
            assert issubclass(error, RuntimeError)
            assert sum(issubclass(error, kind) for kind in kinds) == 1, error


def test_recoverable_errors_say_what_recovers():
    def all_below(kind: type) -> list[type]:
        return [one for below in kind.__subclasses__() for one in (below, *all_below(below))]

    recoverable = all_below(errors.RecoverableError)
    assert errors.ForkedProcessError in recoverable
    assert all(error.recovery_action.isupper() for error in recoverable)
