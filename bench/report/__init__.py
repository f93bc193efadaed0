"""Reports of bench runs: one HTML file with its plots inside, and a Markdown table for bench/log."""
