"""Recordings of small training loops in pairs: the same program twice, or with every step 10 % longer in one."""
