"""Names of operations for users: by layer, without names that TensorFlow, XLA and this package generate."""

import pytest

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.units import format_bytes, format_seconds, round_ticks, tick_label
from tensorflow_ipu.analysis.machine.layers import Layers, grouped, shortened

MODEL = "while/functional_1"
NAMES = {
    # Keras 3 enters the scope of a layer twice.
    f"{MODEL}/attention_0_1/query_1/MatMul": "attention_0/query/MatMul",
    f"gradient_tape/{MODEL}/attention_0_1/query_1/MatMul/MatMul_1": "attention_0/query/MatMul/MatMul_1 (gradient)",
    f"{MODEL}/norm_1_1/moments/mean": "norm_1/moments/mean",
    f"{MODEL}/up_0_1/Tensordot/MatMul": "up_0/Tensordot/MatMul",
    f"{MODEL}/up_0_1/Gelu/mul_1": "up_0/Gelu/mul_1",
    f"{MODEL}/Add_1": "functional/Add_1",
    f"{MODEL}/lstm_1/while/lstm_cell_1/MatMul": "lstm/lstm_cell/MatMul",
    f"gradient_tape/{MODEL}/lstm_1/while/gradients/{MODEL}/lstm_1/while/lstm_cell_1/mul_2/Mul_1": (
        "lstm/lstm_cell/mul_2/Mul_1 (gradient)"
    ),
    f"{MODEL}/dense_1/MatMul": "dense/MatMul",
    f"{MODEL}/dense_1_2/MatMul": "dense_1/MatMul",
    f"{MODEL}/dense_2_1/MatMul": "dense_2/MatMul",
    "stage 0 backward/gradients/functional_1/up_0_1/MatMul_grad/MatMul": "up_0/MatMul (gradient)",
    # Operations outside Keras layers.
    "while/adam/Sub_2": "adam/Sub_2",
    "while/loss/Softmax/Softmax": "loss/Softmax",
    "while/block/inner/MatMul": "block/inner/MatMul",
    "while/Head/MatMul": "Head/MatMul",
    "gradient_tape/while/MatMul/MatMul_1": "MatMul/MatMul_1 (gradient)",
    "while/MatMul": "MatMul",
    "StatefulPartitionedCall/cluster_1_1/xla_compile/Relu;while/Relu": "Relu",
    "update/XLA_Retvals": "dot",
    "XLA_Retvals": "dot",
    "while/IpuInfeedDequeue": "dot",
    "while/layer/IpuHostKernel": "layer/dot",
    "fusion.12": "dot",
}


def test_names_are_of_layers_and_of_operations_in_them(monkeypatch):
    layers = Layers(NAMES)
    assert {name: str(layers.known_as(name, "dot")) for name in NAMES} == NAMES
    assert layers.known_as("copy.3").operation == "copy"
    monkeypatch.setattr(environment, "uses_keras_2", lambda: True)  # Keras 2 does not add numbers to scopes.
    assert str(Layers(["model/dense_2/MatMul"]).known_as("model/dense_2/MatMul")) == "model/dense_2/MatMul"
    paths = {layers.known_as(name).layer for name in NAMES}
    groups = set(grouped(paths).values())
    assert {"attention_0", "up_0", "lstm", "block", "adam", ""} < groups
    assert grouped([("encoder", "a"), ("encoder", "b"), ("encoder", "b", "c")])["encoder", "b", "c"] == "encoder/b/c"
    assert shortened("attention_0/query/MatMul", 14) == "atten...MatMul"


@pytest.mark.parametrize(
    ("end", "binary", "labels"),
    [
        (1.2e9, True, ["0", "256 MiB", "512 MiB", "768 MiB", "1 GiB"]),
        (5000, True, ["0", "1 KiB", "2 KiB", "3 KiB", "4 KiB"]),
        (3.3e-6, False, ["0", "1 us", "2 us", "3 us"]),
        (2.4e-4, False, ["0", "50 us", "100 us", "150 us", "200 us"]),
        (1.1e-3, False, ["0", "500 us", "1 ms"]),
        (0, False, ["0"]),
    ],
)
def test_ticks_are_round(end, binary, labels):
    write = format_bytes if binary else format_seconds
    assert [tick_label(write(tick)) for tick in round_ticks(end, binary=binary)] == labels
