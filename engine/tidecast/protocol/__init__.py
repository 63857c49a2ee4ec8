"""Protocol steps: pure functions of state, input and ``now_ns``. No system calls, no clock."""
