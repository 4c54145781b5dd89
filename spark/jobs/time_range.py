"""The times that a table's readers have dates for: the years 1 to 9999, as in Spark's documentation and in SQL.  Pure.

Spark itself counts on, and names the year 58878 ``+58878``, which other readers of a table refuse.
"""

from __future__ import annotations

FIRST_S, LAST_S = -62_135_596_800, 253_402_300_799
"""First and last second of the range, since 1970 in UTC."""
