"""Tables that rows are joined with: their columns, their version, and their rows whole as Arrow.

A table's own libraries are loaded only where one of its kind is imported.
"""

from penstock.tables.table import LookupTable

__all__ = ["LookupTable"]
