"""The placement of a sharded program: the IPUs of the replica on which each operation runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorflow_ipu.analysis.machine.hlo import Computation, HloInstruction

# `scopes.ipu_shard` sets this attribute of instructions: numbers of IPUs separated by spaces, or -1 for all IPUs.
ATTRIBUTE = "ipu_shard"
_ALL = -1
# Opcodes whose results are on the IPUs that use them.
_SOURCES = frozenset({"constant", "iota", "parameter"})
# Opcodes that only forward data. Each element of their operands stays on its IPU.
_STRUCTURE = frozenset({"call", "conditional", "get-tuple-element", "parameter", "tuple", "while"})


class Placement:
    """The IPUs of each operation of a program.

    `scopes.ipu_shard` places some operations. A computation inherits the placement of the operation that calls it. For
    the others, passes over each computation fill the gaps, in this order: from the largest placed operand, then from a
    user of the result, then from operands again. Operations that remain are placed on IPU 0.
    """

    def __init__(self, program: Computation, ipus: int, shards: Mapping[str, Sequence[int]] | None = None) -> None:
        self._ipus = ipus
        self._shards = shards or {}
        self._of: dict[HloInstruction, tuple[int, ...]] = {}
        self._placed: set[Computation] = set()
        self._place(program, None)

    def of(self, operation: HloInstruction) -> tuple[int, ...]:
        """Returns the IPUs that an operation runs on."""
        return self._of.get(operation, (0,))

    def of_element(self, operation: HloInstruction, number: int) -> tuple[int, ...]:
        """Returns the IPUs that hold an element of an operation's result."""
        return self._element(operation, number) or (0,)

    def received(self, operation: HloInstruction) -> list[HloInstruction]:
        """Returns the operands of an operation that other IPUs hold and send to the operation's IPUs."""
        if operation.opcode in _STRUCTURE:
            return []
        ipus = set(self.of(operation))
        stay = {operand for number in range(len(operation.shape.parts)) if (operand := _passed(operation, number))}
        sent = [operand for operand in dict.fromkeys(operation.operands) if operand not in stay]
        return [
            operand
            for operand in sent
            if operand.opcode not in ("constant", "iota") and not ipus & set(self.of(operand))
        ]

    def carried_over(self, loop: HloInstruction) -> list[tuple[tuple[int, ...], HloInstruction]]:
        """Returns the values of a `while` that move to other IPUs between iterations, each with these IPUs."""
        root = loop.called[0].root
        if root.opcode != "tuple":
            return []
        values = [(self.of_element(loop, number), value) for number, value in enumerate(root.operands)]
        return [
            (ipus, value)
            for ipus, value in values
            if value.opcode != "constant" and not set(self.of(value)) & set(ipus)
        ]

    def _place(self, computation: Computation, inherited: tuple[int, ...] | None) -> None:
        if computation in self._placed:
            return
        self._placed.add(computation)
        users: dict[HloInstruction, list[HloInstruction]] = {}
        for operation in computation.operations:
            for operand in operation.operands:
                users.setdefault(operand, []).append(operation)
            ipus = self._specified(operation) or inherited
            if ipus:
                self._of[operation] = ipus
            for called in operation.called:
                self._place(called, ipus)
        self._follow_operands(computation)
        for operation in reversed(computation.operations):
            ipus = None if operation in self._of else self._by_users(operation, users)
            if ipus:
                self._of[operation] = ipus
        self._follow_operands(computation)
        for operation in computation.operations:
            self._of.setdefault(operation, (0,))

    def _specified(self, operation: HloInstruction) -> tuple[int, ...] | None:
        """Returns the IPUs that `scopes.ipu_shard` specified for an operation or for a name scope around it."""
        text = operation.attribute(ATTRIBUTE)
        ipus = list(map(int, text.split())) if text else self._by_name(operation.scope)
        return tuple(range(self._ipus)) if _ALL in ipus else tuple(ipus) or None

    def _by_name(self, scope: str) -> list[int]:
        for name in scope.split(";"):  # An instruction that XLA merged from several operations has the names of all.
            if name in self._shards:
                return list(self._shards[name])
            scopes = name.split("/")
            for end in range(len(scopes) - 1, 0, -1):
                ipus = self._shards.get("/".join(scopes[:end]) + "/")
                if ipus is not None:
                    return list(ipus)
        return []

    def _follow_operands(self, computation: Computation) -> None:
        for operation in computation.operations:
            if operation in self._of or operation.opcode in _SOURCES:
                continue
            if operation.opcode == "get-tuple-element":
                ipus = self._element(operation.operands[0], operation.number)
            else:
                placed = [operand for operand in operation.operands if operand in self._of]
                ipus = self._of[max(placed, key=lambda operand: operand.shape.bytes)] if placed else None
            if ipus:
                self._of[operation] = ipus

    def _by_users(
        self, operation: HloInstruction, users: Mapping[HloInstruction, list[HloInstruction]]
    ) -> tuple[int, ...] | None:
        for user in users.get(operation, ()):
            if user.opcode != "tuple":
                if user in self._of:
                    return self._of[user]
                continue
            number = user.operands.index(operation)
            for loop in users.get(user, ()):
                ipus = self._element(loop, number) if loop.opcode == "while" else self._of.get(loop)
                if ipus:
                    return ipus
        return None

    def _element(self, operation: HloInstruction, number: int) -> tuple[int, ...] | None:
        if operation.opcode == "tuple":
            return self._of.get(operation.operands[number])
        if operation.opcode == "while":
            body = operation.called[0]
            elements = (
                member for member in body.operations if member.opcode == "get-tuple-element" and member.number == number
            )
            for element in elements:
                if element.operands[0].opcode == "parameter":
                    return self._of.get(element)
            return self._element(body.root, number) if body.root.opcode == "tuple" else None
        # Each element of a parameter is on the IPUs that use it.
        return None if operation.opcode == "parameter" else self._of.get(_passed(operation, number) or operation)


def _passed(operation: HloInstruction, number: int) -> HloInstruction | None:
    """Returns the operand that a custom call returns in place as element `number` of its result.

    An example is a collective of several tensors, whose results are as many tensors of the same shapes.
    """
    if operation.opcode != "custom-call":
        return None
    from_end = (
        len(operation.shape.parts) - number
    )  # Only one side may begin with state variables, so count from the end.
    operand = operation.operands[-from_end] if from_end <= len(operation.operands) else None
    return operand if operand is not None and operand.shape == operation.shape.parts[number] else None
