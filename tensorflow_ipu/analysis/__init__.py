"""What a real machine would make of programs. It reads HLO and plans; the package runs without it."""
