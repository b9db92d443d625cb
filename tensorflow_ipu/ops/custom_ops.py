"""Operations that users write themselves: in C++ for the host, as an expression, or for tiles, with an emulation."""

from tensorflow_ipu.ops._cpu_user_operation import compile_user_operation, cpu_user_operation
from tensorflow_ipu.ops._user_op_emulations import precompiled_user_op
from tensorflow_ipu.ops.vertex_edsl import codelet_expression_op

__all__ = ["codelet_expression_op", "compile_user_operation", "cpu_user_operation", "precompiled_user_op"]
