"""Parts of the loops in ``storage.cleaning.kernels``, by concept; numba compiles them into the loops that use them."""
