"""Read by mypy only (test_types.py): two lines are wrong on purpose."""

from kvfsm.runtime.generated import CompressedKv, CompressedKvTable

slot = CompressedKv()
pins: str = slot.pins  # wrong: an int
table = CompressedKvTable(8)
codes: int = table.unpin([0], expected=1)  # wrong: an array of codes
