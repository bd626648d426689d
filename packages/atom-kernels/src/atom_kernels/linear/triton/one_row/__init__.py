"""Products of one row of inputs, which tensor cores would multiply with fifteen others, in Triton."""
