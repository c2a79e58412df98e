"""What the task `generate` needs beside the engine: texts, lengths, rates, the policy at work, vLLM."""
