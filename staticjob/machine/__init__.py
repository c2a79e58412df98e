"""What the machine gives this process: cores, memory, and the kernel's hold on its children."""
