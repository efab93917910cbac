"""The same job under several placements in one machine: stock PyTorch under the kernel's policies, and Sentinel.

Every placement runs in a child process of its own, and one observer measures them all by what the kernel says.
"""
