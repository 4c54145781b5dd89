"""The parts of ``bmq cluster doctor``: the gathering of facts, and findings with remedies."""
