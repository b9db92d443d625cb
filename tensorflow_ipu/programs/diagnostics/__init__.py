"""Why a program was traced again, what cannot be compiled, and the lines of users."""
