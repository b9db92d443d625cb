"""Where the operations of a sharded program run: on which of its replica's IPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorflow_ipu.analysis.machine.hlo import Computation, HloInstruction

# What `scopes.ipu_shard` says of instructions: numbers of IPUs with blanks between them, -1 for all.
ATTRIBUTE = "ipu_shard"
_ALL = -1
# They are wherever they are used.
_SOURCES = frozenset({"constant", "iota", "parameter"})
# Data passes through them element by element, each where it is.
_STRUCTURE = frozenset({"call", "conditional", "get-tuple-element", "parameter", "tuple", "while"})


class Placement:
    """The IPUs of each operation of a program."""

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
        """Returns the IPUs that have an element of an operation's result."""
        return self._element(operation, number) or (0,)

    def received(self, operation: HloInstruction) -> list[HloInstruction]:
        """Returns the operands of an operation that other IPUs have, and send."""
        if operation.opcode in _STRUCTURE:
            return []
        here = set(self.of(operation))
        stay = {operand for number in range(len(operation.shape.parts)) if (operand := _passed(operation, number))}
        sent = [each for each in dict.fromkeys(operation.operands) if each not in stay]
        return [each for each in sent if each.opcode not in ("constant", "iota") and not here & set(self.of(each))]

    def carried_over(self, loop: HloInstruction) -> list[tuple[tuple[int, ...], HloInstruction]]:
        """Returns the values that an iteration of a `while` leaves on other IPUs than the next one uses them on, with those."""
        root = loop.called[0].root
        if root.opcode != "tuple":
            return []
        ends = [(self.of_element(loop, number), each) for number, each in enumerate(root.operands)]
        return [(to, each) for to, each in ends if each.opcode != "constant" and not set(self.of(each)) & set(to)]

    def _place(self, computation: Computation, around: tuple[int, ...] | None) -> None:
        if computation in self._placed:
            return
        self._placed.add(computation)
        users: dict[HloInstruction, list[HloInstruction]] = {}
        for operation in computation.operations:
            for operand in operation.operands:
                users.setdefault(operand, []).append(operation)
            said = self._said(operation) or around
            if said:
                self._of[operation] = said
            for called in operation.called:
                self._place(called, said)
        self._follow_operands(computation)
        for operation in reversed(computation.operations):
            found = None if operation in self._of else self._by_users(operation, users)
            if found:
                self._of[operation] = found
        self._follow_operands(computation)
        for operation in computation.operations:
            self._of.setdefault(operation, (0,))

    def _said(self, operation: HloInstruction) -> tuple[int, ...] | None:
        text = operation.attribute(ATTRIBUTE)
        numbers = list(map(int, text.split())) if text else self._by_name(operation.scope)
        return tuple(range(self._ipus)) if _ALL in numbers else tuple(numbers) or None

    def _by_name(self, scope: str) -> list[int]:
        for name in scope.split(";"):  # What several operations became has the names of all.
            if name in self._shards:
                return list(self._shards[name])
            words = name.split("/")
            for end in range(len(words) - 1, 0, -1):
                found = self._shards.get("/".join(words[:end]) + "/")
                if found is not None:
                    return list(found)
        return []

    def _follow_operands(self, computation: Computation) -> None:
        for operation in computation.operations:
            if operation in self._of or operation.opcode in _SOURCES:
                continue
            if operation.opcode == "get-tuple-element":
                found = self._element(operation.operands[0], operation.number)
            else:
                placed = [operand for operand in operation.operands if operand in self._of]
                found = self._of[max(placed, key=lambda each: each.shape.bytes)] if placed else None
            if found:
                self._of[operation] = found

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
                found = self._element(loop, number) if loop.opcode == "while" else self._of.get(loop)
                if found:
                    return found
        return None

    def _element(self, operation: HloInstruction, number: int) -> tuple[int, ...] | None:
        if operation.opcode == "tuple":
            return self._of.get(operation.operands[number])
        if operation.opcode == "while":
            body = operation.called[0]
            taken = (each for each in body.operations if each.opcode == "get-tuple-element" and each.number == number)
            for each in taken:
                if each.operands[0].opcode == "parameter":
                    return self._of.get(each)
            return self._element(body.root, number) if body.root.opcode == "tuple" else None
        # Of a parameter, its elements are where they are used, each by itself.
        return None if operation.opcode == "parameter" else self._of.get(_passed(operation, number) or operation)


def _passed(operation: HloInstruction, number: int) -> HloInstruction | None:
    """Returns the operand that a host call returns in an element of its result, such as a collective of several tensors."""
    if operation.opcode != "custom-call":
        return None
    from_end = len(operation.shape.parts) - number  # States may stand in front, on one side alone.
    operand = operation.operands[-from_end] if from_end <= len(operation.operands) else None
    return operand if operand is not None and operand.shape == operation.shape.parts[number] else None
